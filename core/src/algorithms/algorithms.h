// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "core/src/algorithms/peer_messages.h"
#include "core/src/base/steps.h"
#include "ronde/algorithms.h"
#include "ronde/division.h"
#include "ronde/kernels.h"

// Collectives as messages between pairs of ranks, over any fabric. n is the number of ranks, m the
// bytes of the data, and every rank calls the same function with the same sizes. The results are
// the same bits on all ranks: an element is combined by one rank and copied from there, or by
// several in one order. The costs are in cost_model.cc.
//
// References:
// [Chan]    Chan, Heimlich, Purkayastha, van de Geijn: Collective communication: theory, practice,
//           and experience. Concurrency and Computation 19(13), 2007.
// [Thakur]  Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in
//           MPICH. International Journal of High Performance Computing Applications 19(1), 2005.
// [Patarasuk] Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of
//           workstations. Journal of Parallel and Distributed Computing 69(2), 2009.
// [Bruck]   Bruck, Ho, Kipnis, Upfal, Weathersby: Efficient algorithms for all-to-all
//           communications in multiport message-passing systems. IEEE TPDS 8(11), 1997.
// [Awan]    Awan, Hamidouche, Venkatesh, Panda: Efficient large message broadcast using NCCL and
//           CUDA-aware MPI for deep learning. EuroMPI 2016.

namespace ronde {

/// The number of peers that a rank sends to, and receives from, at the same time in the pairwise
/// algorithms: enough to fill a link, few enough not to flood a rank.
inline constexpr std::size_t kPairsAtOnce = 8;

/// An allreduce of `count` elements at `data`, in place. Scales of `reduction` are 1. Other ones
/// are a reduce-scatter and an allgather of one algorithm.
/// @{

/// Ranks at the distances 1, 2, 4, ... exchange all they have: log2(n) messages of m bytes. Where n
/// is no power of two, the ranks in excess first add their data to other ranks, and get the result
/// from them at the end [Thakur].
Steps recursive_doubling_allreduce(PeerMessages& messages, std::byte* data, std::size_t count,
                                   Reduction reduction);
/// Rabenseifner's algorithm: a reduce-scatter by recursive halving and an allgather by recursive
/// doubling, 2 log2(n) messages and the bytes of a ring [Thakur]. Powers of two as above.
Steps halving_doubling_allreduce(PeerMessages& messages, std::byte* data, std::size_t count,
                                 Reduction reduction);
/// @}

/// A reduce-scatter of `parts` (in bytes, one a rank) of `input`, of which this rank's is written
/// to `output`, which may be that part of the input. Scales of `reduction` are 1.
/// @{

/// Around a ring: n - 1 messages of m / n bytes. With ring_allgather() an allreduce with the least
/// bytes that are possible [Patarasuk].
Steps ring_reducescatter(PeerMessages& messages, const std::byte* input, std::byte* output,
                         Parts parts, Reduction reduction);
/// The first half of halving_doubling_allreduce(); n is a power of two.
Steps halving_reducescatter(PeerMessages& messages, const std::byte* input, std::byte* output,
                            Parts parts, Reduction reduction);
/// Every rank receives its part of all inputs at once, and combines them in rank order: the order
/// of every sum depends on the ranks alone.
Steps pairwise_reducescatter(PeerMessages& messages, const std::byte* input, std::byte* output,
                             Parts parts, Reduction reduction);
/// @}

/// An allgather of `parts` (in bytes, one a rank) into `output`, where this rank's is already.
/// @{

/// Every rank forwards the part that it received last: n - 1 messages of m / n bytes, between
/// neighbours only. The first part is that of rank `first`.
Steps ring_allgather(PeerMessages& messages, std::byte* output, Parts parts, std::size_t first = 0);
/// Ranks at the distances 1, 2, 4, ... exchange all they have: log2(n) messages, m bytes in all
/// [Thakur]. n is a power of two.
Steps recursive_doubling_allgather(PeerMessages& messages, std::byte* output, Parts parts);
/// Takes log2(n) messages, rounded up, for any n, at the price of a copy of the result [Bruck].
Steps bruck_allgather(PeerMessages& messages, std::byte* output, Parts parts);
/// Every rank sends its part to all others at once.
Steps pairwise_allgather(PeerMessages& messages, std::byte* output, Parts parts);
/// @}

/// A broadcast of `bytes` at `data`, from the root's.
/// @{

/// Down a binomial tree: log2(n) messages one after the other, all of m bytes [Chan].
Steps binomial_broadcast(PeerMessages& messages, std::byte* data, std::size_t bytes,
                         std::size_t root);
/// A scatter down a binomial tree and an allgather around a ring, of van de Geijn: every rank sends
/// and receives about 2 m bytes [Chan].
Steps scatter_allgather_broadcast(PeerMessages& messages, std::byte* data, std::size_t bytes,
                                  std::size_t root);
/// From rank to rank along a chain, `chunk` bytes at a time, so that all links are busy: m bytes
/// over each, however many ranks there are [Awan].
Steps chain_broadcast(PeerMessages& messages, std::byte* data, std::size_t bytes, std::size_t root,
                      std::size_t chunk);
/// @}

/// Collectives by the algorithm that is named, one of algorithms_of() them.
/// @{
Steps reducescatter_by(PeerMessages& messages, const std::byte* input, std::byte* output,
                       const Parts& parts, const Reduction& reduction, Algorithm algorithm);
Steps allgather_by(PeerMessages& messages, std::byte* output, const Parts& parts,
                   Algorithm algorithm);
Steps broadcast_by(PeerMessages& messages, std::byte* data, std::size_t bytes, std::size_t root,
                   Algorithm algorithm);
/// @}

/// An alltoall: `sent` and `received` (in bytes, one part a rank) of `input` and `output`.
/// @{

/// Directly from rank to rank, at the distances 1, 2, 3, ... so that no rank is flooded [Thakur].
Steps pairwise_alltoall(PeerMessages& messages, const std::byte* input, std::byte* output,
                        Parts sent, Parts received);
/// log2(n) messages, in which every part travels by way of up to log2(n) ranks, in blocks of
/// `largest` bytes: the largest part of any rank [Bruck].
Steps bruck_alltoall(PeerMessages& messages, const std::byte* input, std::byte* output, Parts sent,
                     Parts received, std::size_t largest);
/// @}

}  // namespace ronde
