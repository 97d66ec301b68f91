"""Algorithms of collectives: their steps, the bytes through each port, their chains of messages.

This page is the one place of the formulas; the modules beside it make them (`reductions`,
`spreads`, `direct`) out of what goes through the ports of a topology (`traffic`, `rings`,
`trees`), for a group in its place (`layout`), as `plans` that hold for every size and speed. What
a plan costs at the speed of a network is worked out in `collectives`; who shares ports with whom
is the engine's matter.

Words
-----
S bytes is the size of an operation: the input of one rank. A *tier* joins k *units* of the tier
below; the units of the innermost tier are ranks. Of a group, n members, each unit holds c
members, and the k units in question together u members (u = kc where all are alike). B is the
effective bandwidth of a tier, a its latency per message (on a ring: per hop). A *pass* of a tier
is one there-or-back of the data between its units. An operation is a sequence of *stages*. Of a
stage all ports work at once, so it takes as long as its worst port (bytes over bandwidth), after
the latency of its longest chain of messages. Where units differ in c or k, the worst counts.

Where a network has an `own_share`, rings of equal parts and direct all-to-alls also take that
share of the time of a part for the one that a member keeps (a copy that is no traffic).

Level by level
--------------
**hierarchical**, the default: pass after pass, tiers inside out for what shrinks (scattering),
outside in for what grows (gathering). Each member of a unit handles its share, with the members
of equal share in the other units [1]_ [2]_.

==============  ============================================  ==============  ===============
collective      bytes that a member sends and receives,       messages        passes
                each pass of a tier                           each pass
==============  ============================================  ==============  ===============
reduce-scatter  S (1/c - 1/u) [= S (k-1)/k / c]               k - 1           in to out
all-gather      n S (1/c - 1/u)                               k - 1           out to in
all-reduce      S (k-1)/k / c                                 k - 1           both; the outer-
                                                                              most in one stage
broadcast       S, by one member of each unit                 k - 1           out to in
reduce          as broadcast                                  k - 1           in to out
barrier         0                                             2 ceil(log2 k)  one
==============  ============================================  ==============  ===============

On one switch tier (c = 1, k = n) these are the ring algorithms: all-reduce
2(n-1)/n S/B + 2(n-1) a, all-gather (n-1) S/B + (n-1) a, reduce-scatter (n-1)/n S/B + (n-1) a,
broadcast and reduce (in a pipelined chain) S/B + (n-1) a. Bytes are those that nccl-tests divides
by for its bus bandwidth [3]_. A barrier is a dissemination there and back.

On two switch tiers, m members in each of k domains: all-reduce
2(m-1)/m S/B1 + 2(k-1)/k S/(m B2) + 2(m-1) a1 + 2(k-1) a2, and so on.

Other algorithms with the same passes:

**hierarchical-pipelined**: the data go through all passes in C chunks (`Network.pipeline_chunks`).
Latencies add up as before; of the times of the tiers (all passes of a tier together) the largest
counts in full and the others divided by C.

**halving-doubling**: recursive halving and doubling instead of rings, on switches. Bytes as above
with ceil(log2 k) messages a pass. An all-reduce over k that is no power of two runs between
p = 2^floor(log2 k) units, with (p-1)/p for (k-1)/k; before and after it the other units hand
their data to one of these and get the result (S/c and a message each time) [1]_. A barrier is
ceil(log2 k) messages in each tier, once.

**direct**: each pass is one message to every other unit, all at once; bytes as above. On switches
and full meshes (the one- and two-shot kernels of inference engines).

**in-switch**: the switch adds up what members send and copies to all what it sends them (NVLink
SHARP, InfiniBand SHARP [4]_), in tiers with `in_network_reduction`; other tiers as in
hierarchical. One message a pass. A member sends S/c and receives S/(c k) to reduce and scatter,
and the other way round to gather. On one tier an all-reduce thus sends and receives S (1 + 1/n)
instead of 2 S (n-1)/n: a bus bandwidth of up to 2 (n-1)/(n+1) times the link. It is never a
faster link: bandwidth is that of the ports at `in_network_efficiency`, latency
`in_network_latency_ns` a message. Tiers are pipelined in chunks, as above.

**multi-axis**: on a torus of D rings that the group spans, the data are cut into D parts, and part
p goes through the D dimensions in an order that begins with dimension p, so that all links work
all the time: each stage takes the longest of D passes of S/D [5]_. Default where it is possible:
one dimension after the other (hierarchical, the bucket algorithm) leaves most links idle, and real
machines are faster than it could be (236 GB/s of bus bandwidth on a 16 x 16 torus of links of
100 GB/s, where one after the other has 200). XLA divides collectives over several axes of a TPU
slice so [8]_.

All tiers at once
-----------------
**ring** over several tiers: one ring through all members, unit after unit, laid as often as the
smallest outermost unit has ports to leave by, each time with other ports. With X = 2(n-1)/n S
(all-reduce), (n-1) S (all-gather), (n-1)/n S (reduce-scatter) or S (broadcast, reduce: a chain) a
member sends and receives X/c in the outermost tier and X/c (k-1)/k in the others; the time is that
of the slowest tier. Messages follow each other along the ring: of its n edges all but one of the
innermost tier, twice in an all-reduce. On one tier it is hierarchical.

**tree**: double binary trees between the units of each tier, on switches [6]_. Up and down
together a member sends and receives at most 2 S/c (S/c where k = 2; exactly: half of S/c for each
child and each parent that it has in the two trees). Messages: floor(log2 k) up and as many down in
each tier. In a broadcast the root gives half of the data to the root of each of two trees over the
others: S/c and 1 + floor(log2(k-1)) messages.

Message by message
------------------
**direct** all-to-all, gather, scatter and send: every message goes straight to where it is for,
through the outermost tier in which both ends differ and no other; all tiers at once.

==============  =======================================  ===================================
collective      bytes through a port of a switch tier    messages
==============  =======================================  ===================================
all-to-all      S (u-c)/n                                1; of the tiers used the slowest
gather          S (u-c), at the root                     counts
scatter         as gather
send            S
==============  =======================================  ===================================

On two tiers all-to-all takes max((m-1)/n S/B1, (n-m)/n S/B2) + max(a1, a2). If the root of a
gather is unknown each tier is charged its worst root.

An all-to-all of unequal parts sends P(a, b) bytes from member a to member b, and takes as long as
the port with most to carry: out of a rank the sum over b of P(a, b), into it the sum over b of
P(b, a), of those b that it reaches through that tier; over a link of a mesh P(a, b); over one of a
ring or torus all parts whose shortest way it is on. Where a trace tells the sizes of the members
and not their parts, S is the largest.

**hierarchical** all-to-all: in each tier a member sends what is for the other units, 1 - c/u of S,
to its likes there, which pass it on inside; tier after tier, one message each (two-dimensional
all-to-all of mixture-of-experts libraries). Unequal parts are followed from member to member.

Topologies
----------
*Switch*: a member sends through its own port and receives through its own, or both through a NIC
that `ranks_per_nic` ranks share, whose bytes then add up. With `oversubscription` f the ranks of a
unit also share an uplink of (ports of the full unit) B/f each way. With `shared_ports` the ports
are those of the tier below.

*Full mesh* of N places: B is the total of a chip; each of its N - 1 links has B/(N-1), and a pair
no more than that. In a pass a member spreads its bytes evenly over its links to the k - 1 other
units, so a ring is many rings, together through every link as often as through any other. (So much
is possible in fractions: all (k-1)! rings together use every directed link equally. Whole disjoint
rings exist except for k = 4 and 6 [7]_.) A pass thus takes (N-1)/(k-1) times what it would on a
switch: as long with all N, seven times as long for a pair of eight. A broadcast goes in k - 1
chains and takes S (N-1)/((k-1) B). A message of an all-to-all has its link for itself.

*Ring* of N places: B is that of one link; a member has one to each side. Members are neighbours
along the shortest way. If that closes the ring (wrap-around, and no arc without members longer
than N/2) half of a pass goes each way: b/(2 B) for b bytes per member, and as many hops as
floor(k/2) neighbours in a row are apart at most. Otherwise they form a line, whose end takes
everything in through one link: b/B, and the length of the line in hops. A ring of two has one
link, and is a line. In a broadcast the root sends half of the data around each way (S/(2 B)), on a
line all of it to both sides.

*Torus*: tiers of rings that follow each other. A pass of one dimension goes around the rings of
that dimension. Messages go through one dimension after the other from the innermost, each along
the shortest way, half each way where both are as short; the worst link counts. On a full ring an
all-to-all is bounded by S N/(8 B) (N even, S (N - 1/N)/(8 B) odd), on a full torus by the largest
of its dimensions; on a line by S (N/2)^2/N / B. Members that are no product of coordinates do not
make rings: they pass their data both ways around one ring through all of them, row after row,
that uses the links of the shortest ways.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations
   in MPICH", Int. J. High Performance Computing Applications 19(1), 2005.
.. [2] E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory,
   practice, and experience", Concurrency and Computation 19(13), 2007.
.. [3] NVIDIA nccl-tests, doc/PERFORMANCE.md.
.. [4] R. Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COM-HPC 2016;
   B. Klenk et al., "An In-Network Architecture for Accelerating Shared-Memory Multiprocessor
   Collectives", ISCA 2020.
.. [5] N. Jain, Y. Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus
   interconnects", ICS 2010. The measurement: AI-Hypercomputer/accelerator-microbenchmarks,
   psum over ICI on v6e-256.
.. [6] P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast,
   reduction and scan", Parallel Computing 35(12), 2009.
.. [7] T. W. Tillson, "A Hamiltonian decomposition of K*_2m, 2m >= 8", J. Combinatorial Theory B
   29(1), 1980.
.. [8] jax-ml/scaling-book 0819a7d, on sharded matrices: a gather over several axes has the
   bandwidth of all of them.
"""
