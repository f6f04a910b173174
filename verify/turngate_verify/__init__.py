"""The checks that hold a dispatcher to the model, this project's or another one.

`world` is the closed world that a dispatcher is put into, `drivers` make things happen in it, `conform` holds
dispatchers of other people to the properties, `trace` judges recorded histories, `cli` is the command line.
"""
