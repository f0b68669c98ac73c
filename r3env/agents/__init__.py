"""Agents that reach the policy through a chat endpoint on localhost."""
