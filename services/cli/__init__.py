"""The command line: one file a command group; heavy imports wait until a command needs them."""
