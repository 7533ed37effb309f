"""Published results run again: theirs beside ours, by one command each (`secagg reproduce`)."""
