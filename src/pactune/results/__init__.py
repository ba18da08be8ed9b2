"""What a run gives, and who listens to it: the result, its verdict, its plots, and callbacks.

A run writes rows and ends in a `Result`. Nothing here runs anything. A new method of the result or a new event for
listeners belongs here.
"""
