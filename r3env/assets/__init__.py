"""The embedded tiny model, its problems, and the recipe that makes both (`python -m r3env.assets.build`)."""
