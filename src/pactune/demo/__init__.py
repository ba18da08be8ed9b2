"""`pactune demo`: one small problem that overfits its validation set (`digits`), and its page (`page`)."""
