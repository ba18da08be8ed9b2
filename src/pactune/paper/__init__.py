"""Everything that exists only to redo the paper: data sets, models, studies, their pages and their commands.

Nothing in the library imports this package. A new study is a file here, with its page in `pages` and its command in
`commands`.
"""
