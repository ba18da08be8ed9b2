"""Files that pactune writes and reads: plain files, written atomically, and JSON from files of strangers.

Nothing in this room knows what a file means, except the rules for the lines of a journal and the rows of a history. A
new kind of file takes its reading and writing from here.
"""
