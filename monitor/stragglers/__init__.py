"""Stragglers in a recorded table of operation timings: who was slow, judged on arrays.

Belongs here: what a table means, normalising by work, persistence, transfers, verdicts; pure
functions of arrays. Not here: reading files (`traces`), words for people (`reports.stragglers`),
the arithmetic of one rank among its peers (`cohort`, shared with the online detector).

Theory of operation. Ranks of one pipeline stage do the same work on different data, so they are
each other's reference; stages are never compared (39 % of the jobs in "Understanding Stragglers
in Large Model Training Using What-if Analysis", OSDI'25, have a heavier last stage, which is no
fault). Three things vary between such ranks without anybody being sick, and each has its answer:

- long sequences make a microbatch slow on *all* stages of its replica: each duration is divided
  by what the other stages say of the same microbatch (`work`);
- pauses (garbage collection) hit few microbatches of a step: a rank's step is the median over its
  microbatches (`work`);
- whatever is left hits another rank in another step: a rank is named only if its share of slow
  steps cannot be explained by the share of its peers (`persist`).
"""
