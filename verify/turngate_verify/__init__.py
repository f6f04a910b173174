"""What holds the dispatcher to the model, and other people's dispatchers too.

`world` is the closed world that a dispatcher is put into, `drivers` make things happen in it, `conform` holds
dispatchers of other people to the properties, `trace` judges recorded histories, `cli` is the command line.
"""
