"""The checks of the real dispatcher: a closed world, and the drivers that make things happen in it.

Like the command line, and unlike the dispatcher, it brings the two packages
together and needs the extra ``verify``.
"""
