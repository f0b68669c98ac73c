"""Write a trained model as a folder, and upload it with a model card: the library of `python -m algorithms.export`.

Start with model_folder.py.
"""
