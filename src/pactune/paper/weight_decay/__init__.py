"""Section 4.2 and its appendix: a weight decay for every parameter of an image classifier, tuned on 50 images.

`setting` defines one run, and `studies` the runs behind each figure or table. `cells` runs them, each in its run
folder; `records` reads these folders again. `rules` compares methods, `sections` and `method_tables` make the page.
A new study is a function in `studies`, a section in `sections` and a command in `pactune.paper.commands.weight_decay`.
"""

from pactune.paper.weight_decay.setting import StudySetting, builder, evaluation_set

__all__ = ["StudySetting", "builder", "evaluation_set"]
