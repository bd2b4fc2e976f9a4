// SPDX-License-Identifier: Apache-2.0
// The operations of the backend: each checks its tensors and describes itself to the engine.
#include <ATen/Functions.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <string>
#include <utility>

#include "python/src/backend.h"
#include "python/src/tensors.h"
#include "ronde/error.h"

namespace ronde::c10d_backend {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;

const at::Tensor& only(const char* call, const List& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, call, ": one tensor is needed, not ", tensors.size());
  check_tensor(call, tensors.front());
  return tensors.front();
}

/// Returns the one list, which has a tensor for each rank.
const List& only_list(const char* call, const std::vector<List>& lists, int ranks) {
  TORCH_CHECK_VALUE(lists.size() == 1 && lists.front().size() == static_cast<std::size_t>(ranks),
                    call, ": one list of ", ranks, " tensors is needed");
  return lists.front();
}

bool are_equally_large(const List& tensors, const at::Tensor& like) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) { return tensor.numel() == like.numel(); });
}

Counts parts_of_each(const List& tensors) {
  Counts parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(parts_in(tensor));
  return parts;
}

/// As many rows for each of `ranks`.
Counts rows_for_all(int ranks, std::int64_t rows) {
  return Counts(static_cast<std::size_t>(ranks), rows);
}

/// One row for one of `ranks`.
Counts row_for(std::int64_t rank, int ranks) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < ranks, "ronde: invalid root rank: ", rank);
  Counts rows = rows_for_all(ranks, 0);
  rows[static_cast<std::size_t>(rank)] = 1;
  return rows;
}

/// The tag of monitoredBarrier()'s messages, beyond the tags of programs, which are ints.
constexpr std::int64_t kBarrierTag = std::int64_t{1} << 40;

}  // namespace

/// A call on one tensor, which is its input and its output.
void Backend::describe_in_place(Call& call, Collective kind, const List& tensors) {
  const at::Tensor& tensor = only(call.title, tensors);
  describe(call, kind, tensor, tensor, {parts_in(tensor)});
  call.inputs = call.outputs = tensors;
}

Backend::WorkPtr Backend::broadcast(List& tensors, const c10d::BroadcastOptions& opts) {
  Call call{{OpType::BROADCAST, "ronde:broadcast"}, opts.timeout, opts.asyncOp};
  describe_in_place(call, Collective::Broadcast, tensors);
  call.request.root = static_cast<int>(opts.rootRank);
  return start(std::move(call));
}

Backend::WorkPtr Backend::allreduce(List& tensors, const c10d::AllreduceOptions& opts) {
  if (tensors.size() == 1 && tensors.front().is_sparse()) return allreduce_sparse(tensors, opts);
  Call call{{OpType::ALLREDUCE, "ronde:all_reduce"}, opts.timeout, opts.asyncOp};
  describe_in_place(call, Collective::Allreduce, tensors);
  const at::Tensor& tensor = tensors.front();
  set_reduction(call.request, opts.reduceOp, tensor);
  // Where a rank passes a part, such as a gradient in a bucket, others may pass ordinary memory.
  call.request.symmetric =
      state_->heap && tensor.is_cpu() && tensor.nbytes() == tensor.storage().nbytes() &&
      opts.reduceOp != c10d::ReduceOp::PREMUL_SUM &&
      state_->heap->offset_of(call.request.output, tensor.nbytes()).has_value();
  return start(std::move(call));
}

Backend::WorkPtr Backend::allreduce_coalesced(List& tensors,
                                              const c10d::AllreduceCoalescedOptions& opts) {
  return together({OpType::ALLREDUCE_COALESCED, "ronde:all_reduce", {}, tensors}, tensors.size(),
                  [&](std::size_t i) {
                    List one{tensors[i]};
                    allreduce(one, opts);
                  });
}

Backend::WorkPtr Backend::reduce(List& tensors, const c10d::ReduceOptions& opts) {
  Call call{{OpType::REDUCE, "ronde:reduce"}, opts.timeout, opts.asyncOp};
  describe_in_place(call, Collective::Reduce, tensors);
  set_reduction(call.request, opts.reduceOp, tensors.front());
  if (opts.rootRank != getRank()) call.request.output = nullptr;
  call.request.root = static_cast<int>(opts.rootRank);
  return start(std::move(call));
}

Backend::WorkPtr Backend::allgather(Lists& outputs, List& inputs,
                                    const c10d::AllgatherOptions& opts) {
  Call call{{OpType::ALLGATHER, "ronde:all_gather"}, opts.timeout, opts.asyncOp};
  const List& list = only_list(call.title, outputs, getSize());
  const at::Tensor input = row_major(only(call.title, inputs));
  check_like(call.title, list, input, false);
  if (!are_equally_large(list, input)) {
    const at::Tensor& own = list[static_cast<std::size_t>(getRank())];
    check_like(call.title, {own}, input, true);
    own.detach().copy_(input.view(own.sizes()));
    return together({call.type, call.title, {}, inputs}, list.size(), [&](std::size_t root) {
      List one{list[root]};
      broadcast(one, {.rootRank = static_cast<std::int64_t>(root), .timeout = opts.timeout});
    });
  }
  const Flat flat(list);
  describe(call, Collective::Allgather, flat.tensor(), input, {1, parts_in(input)});
  call.request.finish = flat.spill();
  call.inputs = {input};
  call.outputs = list;
  call.others = {flat.tensor()};
  return start(std::move(call));
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& opts) {
  Call call{{OpType::_ALLGATHER_BASE, "ronde:_all_gather_base"}, opts.timeout, opts.asyncOp};
  check_tensor(call.title, output, true);
  check_like(call.title, {input}, output, false);
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(),
                    "output tensor size must be equal to world_size times input tensor size");
  call.inputs = {row_major(input)};
  call.outputs = {output};
  // A row, so that the engine compares the sizes of the ranks.
  describe(call, Collective::Allgather, output, call.inputs.front(), {1, parts_in(input)});
  return start(std::move(call));
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(List& outputs, List& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ronde: as many outputs as inputs are needed");
  return together({OpType::COALESCED, "ronde:_all_gather_base", {}, inputs}, inputs.size(),
                  [&](std::size_t i) { _allgather_base(outputs[i], inputs[i], opts); });
}

Backend::WorkPtr Backend::allgather_coalesced(Lists& outputs, List& inputs,
                                              const c10d::AllgatherOptions& opts) {
  return together({OpType::ALLGATHER_COALESCED, "ronde:all_gather", {}, inputs}, inputs.size(),
                  [&](std::size_t i) {
                    Lists of_each(1);
                    for (const List& of_rank : outputs) {
                      TORCH_CHECK_VALUE(of_rank.size() == inputs.size(),
                                        "ronde: invalid number of outputs");
                      of_each.front().push_back(of_rank[i]);
                    }
                    List one{inputs[i]};
                    allgather(of_each, one, opts);
                  });
}

/// An alltoall. The senders decide how many rows arrive, which are compared with those that this
/// rank expects.
void Backend::describe_exchange(Call& call, const at::Tensor& output, const at::Tensor& input,
                                std::int64_t row, Counts received, Counts sent) {
  describe(call, Collective::Alltoall, output, input, {c10::sum_integers(sent), row});
  call.request.splits = std::move(sent);
  call.request.allocate_output =
      [memory = std::exchange(call.request.output, nullptr),
       expected = c10::sum_integers(received)](const std::vector<std::int64_t>& shape) {
        if (shape.front() == expected) return memory;
        throw UsageError("the output of this rank has " + std::to_string(expected) +
                         " rows, but the others send " + std::to_string(shape.front()));
      };
  call.check = [expected = std::move(received)](const Work& work) {
    const Counts actual = work.received_splits();
    TORCH_CHECK_VALUE(actual == expected, "ronde: this rank expects ", at::IntArrayRef(expected),
                      " rows of the ranks, but they sent ", at::IntArrayRef(actual));
  };
}

Backend::WorkPtr Backend::gather(Lists& outputs, List& inputs, const c10d::GatherOptions& opts) {
  Call call{{OpType::GATHER, "ronde:gather"}, opts.timeout, opts.asyncOp};
  const at::Tensor input = row_major(only(call.title, inputs));
  const bool is_root = opts.rootRank == getRank();
  TORCH_CHECK_VALUE(is_root || outputs.empty(), "ronde:gather: requires empty output on non-root");
  if (is_root) call.outputs = only_list(call.title, outputs, getSize());
  check_like(call.title, call.outputs, input, true);
  const Flat flat(is_root ? call.outputs : List{input});
  describe_exchange(call, flat.tensor(), input, parts_in(input), rows_for_all(getSize(), is_root),
                    row_for(opts.rootRank, getSize()));
  if (is_root) call.request.finish = flat.spill();
  call.inputs = {input};
  call.others = {flat.tensor()};
  return start(std::move(call));
}

Backend::WorkPtr Backend::scatter(List& outputs, Lists& inputs, const c10d::ScatterOptions& opts) {
  Call call{{OpType::SCATTER, "ronde:scatter"}, opts.timeout, opts.asyncOp};
  const at::Tensor& output = only(call.title, outputs);
  check_tensor(call.title, output, true);
  const bool is_root = opts.rootRank == getRank();
  TORCH_CHECK_VALUE(is_root || inputs.empty(), "ronde:scatter: requires empty input on non-root");
  if (is_root) call.inputs = only_list(call.title, inputs, getSize());
  check_like(call.title, call.inputs, output, true);
  const Flat flat(is_root ? call.inputs : List{output});
  flat.fill();
  describe_exchange(call, output, flat.tensor(), parts_in(output),
                    row_for(opts.rootRank, getSize()), rows_for_all(getSize(), is_root));
  call.outputs = outputs;
  call.others = {flat.tensor()};
  return start(std::move(call));
}

Backend::WorkPtr Backend::reduce_scatter(List& outputs, Lists& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kTitle = "ronde:reduce_scatter";
  at::Tensor output = only(kTitle, outputs);
  check_tensor(kTitle, output, true);  // the others send its elements row by row
  const List& list = only_list(kTitle, inputs, getSize());
  const auto own = static_cast<std::size_t>(getRank());
  check_like(kTitle, list, output, false);
  check_like(kTitle, {list[own]}, output, true);
  if (are_equally_large(list, output)) {
    const Flat flat(list);
    flat.fill();
    at::Tensor input = flat.tensor();
    return _reduce_scatter_base(output, input, opts);
  }
  output.detach().copy_(row_major(list[own]).view(output.sizes()));
  return together({OpType::REDUCE_SCATTER, kTitle, {}, list}, list.size(), [&](std::size_t root) {
    List one{root == own ? output : row_major(list[root])};
    reduce(one, {.reduceOp = opts.reduceOp,
                 .rootRank = static_cast<std::int64_t>(root),
                 .timeout = opts.timeout});
  });
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  Call call{
      {OpType::_REDUCE_SCATTER_BASE, "ronde:_reduce_scatter_base"}, opts.timeout, opts.asyncOp};
  check_tensor(call.title, output, true);
  check_like(call.title, {input}, output, false);
  TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(),
                    "input tensor must be the same size as output size times world size");
  call.inputs = {row_major(input)};
  call.outputs = {output};
  describe(call, Collective::Reducescatter, output, call.inputs.front(),
           {getSize(), parts_in(output)});
  set_reduction(call.request, opts.reduceOp, input);
  return start(std::move(call));
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(List& outputs, List& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ronde: as many outputs as inputs are needed");
  return together({OpType::COALESCED, "ronde:_reduce_scatter_base", {}, inputs}, inputs.size(),
                  [&](std::size_t i) { _reduce_scatter_base(outputs[i], inputs[i], opts); });
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        Counts& output_splits, Counts& input_splits,
                                        const c10d::AllToAllOptions& opts) {
  Call call{{OpType::ALLTOALL_BASE, "ronde:all_to_all"}, opts.timeout, opts.asyncOp};
  const auto rows_of = [&](const at::Tensor& tensor, const Counts& splits) {
    check_tensor(call.title, tensor, true);
    c10d::checkSplitSizes(splits, tensor, getSize());
    return splits.empty() ? rows_for_all(getSize(), tensor.size(0) / getSize()) : splits;
  };
  const Counts received = rows_of(output, output_splits);
  const Counts sent = rows_of(input, input_splits);
  const std::int64_t row = c10::multiply_integers(input.sizes().slice(1));
  check_like(call.title, {output}, input, false);
  TORCH_CHECK_VALUE(row == c10::multiply_integers(output.sizes().slice(1)),
                    "ronde: rows of output and input differ in their size");
  call.inputs = {input};
  call.outputs = {output};
  describe_exchange(call, output, input, elements_of(input).parts * row, received, sent);
  return start(std::move(call));
}

Backend::WorkPtr Backend::alltoall(List& outputs, List& inputs, const c10d::AllToAllOptions& opts) {
  Call call{{OpType::ALLTOALL, "ronde:all_to_all"}, opts.timeout, opts.asyncOp};
  call.inputs = only_list(call.title, {inputs}, getSize());
  call.outputs = only_list(call.title, {outputs}, getSize());
  check_like(call.title, inputs, inputs.front(), false);
  check_like(call.title, outputs, inputs.front(), false);
  const Flat from(inputs);
  from.fill();
  const Flat to(outputs);
  call.others = {from.tensor(), to.tensor()};
  describe_exchange(call, to.tensor(), from.tensor(), 1, parts_of_each(outputs),
                    parts_of_each(inputs));
  call.request.finish = to.spill();
  return start(std::move(call));
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& opts) {
  Call call{{OpType::BARRIER, "ronde:barrier"}, opts.timeout, opts.asyncOp};
  call.request.kind = Collective::Barrier;
  return start(std::move(call));
}

/// Returns the rows of all ranks, in their order, of which each has `counts`.
at::Tensor Backend::gather_rows(const at::Tensor& rows, const Counts& counts,
                                milliseconds timeout) {
  Counts sizes = rows.sizes().vec();
  sizes.front() = c10::sum_integers(counts);
  Call call{{OpType::_ALLREDUCE_SPARSE, "ronde:sparse_all_reduce"}, timeout, false};
  call.inputs = {rows};
  call.outputs = {at::empty(sizes, rows.options())};
  const std::int64_t row = c10::multiply_integers(rows.sizes().slice(1));
  const at::Tensor output = call.outputs.front();
  describe(call, Collective::Allgather, output, rows,
           {rows.size(0), elements_of(rows).parts * row});
  start(std::move(call))->wait(kNoTimeout);
  return output;
}

/// Gathers the indices and values of all ranks, and has ended when it returns.
Backend::WorkPtr Backend::allreduce_sparse(List& tensors, const c10d::AllreduceOptions& opts) {
  TORCH_CHECK_VALUE(tensors.size() == 1 && tensors.front().is_sparse() && tensors.front().is_cpu(),
                    "ronde: allreduce_sparse: one sparse (COO) tensor on the CPU is needed");
  TORCH_CHECK_VALUE(opts.reduceOp == c10d::ReduceOp::SUM || opts.reduceOp == c10d::ReduceOp::AVG,
                    "ronde: sparse tensors are summed or averaged");
  const at::NoGradGuard no_grad;
  const at::Tensor tensor = tensors.front().detach().coalesce();
  Counts facts = tensor.sizes().vec();
  facts.push_back(tensor._nnz());
  const at::Tensor of_all = gather_rows(at::tensor(facts, at::kLong).unsqueeze(0),
                                        rows_for_all(getSize(), 1), opts.timeout);
  const at::Tensor sizes = of_all.narrow(1, 0, tensor.dim());
  TORCH_CHECK_VALUE(sizes.equal(sizes.narrow(0, 0, 1).expand_as(sizes)),
                    "ronde: the sparse tensors of the ranks differ in their size");
  const at::Tensor nonzeros = of_all.select(1, tensor.dim()).contiguous();
  const auto* const first = nonzeros.const_data_ptr<std::int64_t>();
  const Counts counts(first, first + getSize());
  const at::Tensor indices =
      gather_rows(tensor.indices().t().contiguous(), counts, opts.timeout).t();
  at::Tensor values = gather_rows(tensor.values().contiguous(), counts, opts.timeout);
  if (opts.reduceOp == c10d::ReduceOp::AVG) values.div_(getSize());
  tensors.front().copy_(
      at::sparse_coo_tensor(indices, values, tensor.sizes(), tensor.options()).coalesce());
  Started done{.type = OpType::_ALLREDUCE_SPARSE, .outputs = tensors, .tensors = keep({})};
  return c10::make_intrusive<StartedWork>(getRank(), std::move(done), state_->completions);
}

Backend::WorkPtr Backend::start_message(Collective kind, OpType type, List& tensors, int peer,
                                        int tag) {
  const bool sends = kind == Collective::Send;
  Call call{{type, sends ? "ronde:send" : peer == kAnyRank ? "ronde:recvAnySource" : "ronde:recv"}};
  TORCH_CHECK_VALUE(tag >= 0, call.title, ": Tag must be nonnegative");
  describe_in_place(call, kind, tensors);
  if (sends) call.request.output = nullptr;
  if (!sends) call.request.input = nullptr;
  call.request.peer = peer;
  call.request.tag = tag;
  return start(std::move(call));
}

/// Starts an empty message.
Work Backend::pass(Collective kind, int peer, milliseconds timeout) {
  Request request;
  request.kind = kind;
  request.shape = {0};
  request.peer = peer;
  request.tag = kBarrierTag;
  return submit(std::move(request), timeout);
}

/// Rank 0: waits for a message of each other rank, one after the other, so that no recv is left
/// that would take a later message. Returns those that sent none in time, or the first of them.
std::vector<int> Backend::late_ranks(milliseconds timeout, bool wait_for_all) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::vector<int> late;
  for (int rank = 1; rank < getSize() && (wait_for_all || late.empty()); ++rank) {
    const auto left = std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now());
    try {
      // What came in time is still taken after the end.
      await(pass(Collective::Recv, rank, std::max(left, milliseconds(20))));
    } catch (const TimeoutError&) {
      late.push_back(rank);
    }
  }
  return late;
}

/// Every rank sends rank 0 a message, which answers all once it has heard of all.
void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_for_all) {
  const milliseconds timeout =
      opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout;
  TORCH_CHECK(timeout > milliseconds(0), "Rank ", getRank(),
              " timed out in monitoredBarrier after ", timeout.count(), " ms.");
  ++sequence_;
  try {
    if (getRank() != 0) {
      const Work arrival = pass(Collective::Send, 0, timeout);
      const Work answer = pass(Collective::Recv, 0, timeout);
      await(arrival);
      await(answer);
      return;
    }
    const std::vector<int> late = late_ranks(timeout, wait_for_all);
    TORCH_CHECK(late.empty(), "[Rank 0]: ", late.size() == 1 ? "Rank " : "Ranks ",
                c10::Join(", ", late), " failed to pass monitoredBarrier in ", timeout.count(),
                " ms");
    std::vector<Work> answers;
    for (int rank = 1; rank < getSize(); ++rank) {
      answers.push_back(pass(Collective::Send, rank, timeout));
    }
    for (const Work& answer : answers) await(answer);
  } catch (const Error& e) {
    if (getRank() == 0) throw torch_error(e);
    TORCH_CHECK_WITH(DistBackendError, false, "[Rank ", getRank(), "]: Rank ", getRank(),
                     " successfully reached monitoredBarrier, but received errors while waiting "
                     "for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n",
                     e.what());
  }
}

}  // namespace ronde::c10d_backend
