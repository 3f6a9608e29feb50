"""``python -m tracehook``: the command line, as torchrun's ``-m`` wants it."""

from tracehook.commands import main

main()
