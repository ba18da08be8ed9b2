"""The bound on eigenvalues and the finer clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pactune.selection.moments import LangevinPath
from pactune.selection.step_size import StepSizeWarning, bordered_eigenvalue_bound, finer_path


@given(seed=st.integers(0, 1000), size=st.integers(0, 6), shared=st.floats(0, 3))
def test_bound_holds_for_every_candidate(seed, size, shared):
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(20, size + 4)) + shared * rng.normal(size=(20, 1))
    gram = columns.T @ columns / 20
    candidates = list(range(size, size + 4))
    bound = bordered_eigenvalue_bound(gram[:size, :size], gram[:size, candidates], np.diag(gram)[candidates])
    for candidate in candidates:
        subset = [*range(size), candidate]
        assert np.linalg.eigvalsh(gram[np.ix_(subset, subset)])[-1] <= bound * (1 + 1e-12)


def test_finer_path_keeps_the_horizon_and_is_stable():
    with pytest.warns(StepSizeWarning, match=r"0\.1; using 0\.05 with 100 steps"):
        path = finer_path(LangevinPath(learning_rate=0.1, steps=50), 20.0, 20)
    assert path.learning_rate * path.steps == pytest.approx(5.0)
    assert path.learning_rate * 20 < 2.0
