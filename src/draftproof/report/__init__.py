"""Reports of one run, made from its records alone. Importing the package loads nothing: figures need matplotlib."""
