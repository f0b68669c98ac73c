"""The registered suite: does a method help where groups are silent?"""
