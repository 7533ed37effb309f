"""Privacy ledgers between coordinator and silos: what is said, and what counts as proof."""
