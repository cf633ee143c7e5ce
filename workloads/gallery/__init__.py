"""Models and datasets of `experiments/gallery`, each of which needs a module of its own."""
