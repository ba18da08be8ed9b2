"""The parts of `pt.tune`: a few scalars by search over folds, many hyperparameters by gradient, and the judgement.

Every choice is made by rows that did not train the model, and every procedure is judged by rows that it did not choose
by. The files say which rows do what, train with fixed decays, tune from the best decay, and compare the three.
"""
