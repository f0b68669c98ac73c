"""Agents that reach the policy as a chat endpoint of their own, on localhost."""
