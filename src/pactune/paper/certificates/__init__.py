"""Certified error rates on digits and MNIST, which the paper does not have, and tests of the certificates themselves.

`grid` certifies on the training sample and `hyper_drift` on the validation sample; `studies` lists all of them for
`pactune reproduce certificate`, and `page` shows them. `coverage` counts how often a certificate is wrong, and
`attempts` tries to obtain false ones. A new certificate is a call in `studies`; a new attempt is a row in
`attempt_cases`.
"""
