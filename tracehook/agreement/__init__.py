"""How the ranks of a group compare what they are about to do. Knows no memory. README.md lists the modules."""
