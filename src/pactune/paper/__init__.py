"""Everything that exists only to redo the paper: data sets, models, studies, their pages and their commands.

Each study has a room: `weight_decay` (section 4.2), `freedman` (section 4.1) and `certificates` (beyond the paper). The
room holds the study's settings, its runs and its page; the command that starts it is in `commands`. The other modules
are shared: images, classifiers and intervals. The library proper never imports this package.
"""
