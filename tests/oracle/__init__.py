"""The counterfactual oracle: an independent model of a job, used as truth by the tests.

A *program* says what the hosts of a job do: operations, launches, events, synchronisations,
hand-overs between threads, collectives and point-to-point messages (`programs`). An executor
written in plain Python, sharing nothing with the package under test, runs it on a network and
knows when everything happened (`executor`). A writer stores a run as Kineto files, one per rank,
as a profiler would have recorded it (`kineto_writer`). So the answer to "how long would the step
have taken on network B" is known exactly: run the program on B. What the package says about B
after reading only the files recorded on A can then be held against it.

Nothing here imports the package under test, and it must stay that way: agreement between two
independent models is the evidence.
"""
