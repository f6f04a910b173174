"""The command line: ``turngate serve``, ``turngate chat``, and the commands that other packages register."""
