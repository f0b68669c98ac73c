"""The learners: from training samples to an optimizer step.

Start with learner.py, RLlib's Learner. It calls update.py (loss and gradient over micro-batches), which calls loss.py.
The driver calls group.py.
"""
