"""`pactune demo`: one small problem that overfits its validation set, and the page about it."""
