// SPDX-License-Identifier: Apache-2.0
// Sends and receives the bytes of objects, which object_bytes.cc encodes.
#include "ronde/torch/objects.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <cstdint>
#include <memory>
#include <new>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde::detail {
namespace {

const char* const kAdvice = "Give it one root, and objects of one type and shape, on every rank";

// The tensor owns the bytes, as after a group error the backend may still use them.
at::Tensor as_tensor(std::shared_ptr<std::string> bytes) {
  char* data = bytes->data();
  const auto count = static_cast<std::int64_t>(bytes->size());
  return at::from_blob(
      data, {count}, [owner = std::move(bytes)](void*) {}, at::kByte);
}

at::Tensor as_tensor(std::string bytes) {
  return as_tensor(std::make_shared<std::string>(std::move(bytes)));
}

// Rows [begin, begin + count) of a tensor of bytes.
std::string text_at(const at::Tensor& bytes, std::int64_t begin, std::int64_t count) {
  if (count == 0) return {};
  return {static_cast<const char*>(bytes.const_data_ptr()) + begin,
          static_cast<std::size_t>(count)};
}

// Returns why this rank lacked memory, for the next agreement: other ranks do not know.
std::string lack_of_memory(const std::function<void()>& exchange) {
  try {
    exchange();
    return {};
  } catch (const OutOfMemoryError& error) {
    return error.what();
  } catch (const std::bad_alloc&) {
    return "no memory for what was received";
  }
}

void agree_on(const std::string& subject, const Statement& mine, ProcessSet set,
              std::chrono::nanoseconds timeout) {
  agree(subject, mine, set, {.advice = kAdvice, .timeout = timeout});
}

// Sends the root's bytes to all others.
void broadcast_bytes(const std::string& subject, const std::shared_ptr<std::string>& bytes,
                     const BroadcastOptions& options) {
  const ProcessSet set = options.process_set;
  BroadcastOptions own = options;
  own.name = subject + "/size";
  const at::Tensor count = at::full({}, static_cast<std::int64_t>(bytes->size()), at::kLong);
  broadcast_(count, own);
  const auto size = static_cast<std::size_t>(count.item<std::int64_t>());
  Statement memory;
  memory.problem = problem_of([&] { bytes->resize(size); });
  if (!memory.problem.empty()) {
    memory.problem = "no memory for " + std::to_string(size) + " bytes: " + memory.problem;
  }
  // Agreed before the others begin to send.
  agree_on(subject, memory, set, options.timeout);
  own.name = subject + "/bytes";
  broadcast_(as_tensor(bytes), own);
}

// Encodes this rank's object, and agrees on success and type.
std::string encode_and_agree(const std::string& subject, const ListCodec& codec, Statement mine,
                             ProcessSet set, std::chrono::nanoseconds timeout) {
  std::string bytes;
  mine.lines.push_back(codec.type);
  if (mine.problem.empty()) mine.problem = problem_of([&] { bytes = codec.encode(); });
  agree_on(subject, mine, set, timeout);
  return bytes;
}

// Appends the parts of `all`; the first that does not load is this rank's problem.
std::string append_parts(const ListCodec& codec, const at::Tensor& all, at::IntArrayRef lengths,
                         ProcessSet set) {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::string problem = problem_of([&] { codec.append(text_at(all, begin, lengths[i])); });
    if (!problem.empty()) {
      return "the object of rank " + std::to_string(ranks_of(set).at(i)) +
             " cannot be loaded: " + problem;
    }
    begin += lengths[i];
  }
  return {};
}

}  // namespace

void broadcast_encoded(const std::string& subject, const ObjectCodec& codec,
                       const BroadcastOptions& options) {
  const ProcessSet set = options.process_set;
  check_member(subject, set);
  const bool is_root = rank_in(set) == options.root;
  Statement mine{.lines = {"root rank " + std::to_string(options.root)},
                 .problem = root_problem(options.root, set)};
  mine.lines.insert(mine.lines.end(), codec.lines.begin(), codec.lines.end());
  if (mine.problem.empty()) mine.problem = codec.problem;
  const auto bytes = std::make_shared<std::string>();
  if (is_root && mine.problem.empty()) {
    mine.problem = problem_of([&] { *bytes = codec.encode(); });
  }
  agree_on(subject, mine, set, options.timeout);
  broadcast_bytes(subject, bytes, options);

  std::function<void(bool)> finish = [](bool) {};
  Statement loaded;
  if (!is_root) {
    loaded.problem = problem_of([&] { finish = codec.decode(std::move(*bytes)); });
  }
  try {
    agree_on(subject, loaded, set, options.timeout);
  } catch (const std::exception& error) {
    const std::string problem = problem_of([&] { finish(false); });
    if (problem.empty()) throw;
    throw UsageError(error.what() + ("\nOn this rank the object cannot be set back: " + problem));
  }
  finish(true);
}

void broadcast_object(const ObjectCodec& codec, const BroadcastOptions& options) {
  broadcast_encoded(subject_of("broadcast_object", options.name), codec, options);
}

void allgather_object(const ListCodec& codec, const AllgatherOptions& options) {
  const std::string subject = subject_of("allgather_object", options.name);
  const ProcessSet set = options.process_set;
  check_member(subject, set);
  std::string bytes = encode_and_agree(subject, codec, {}, set, options.timeout);
  AllgatherOptions own = options;
  own.name = subject + "/sizes";
  const at::Tensor sizes =
      allgather(at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong), own);
  own.name = subject + "/bytes";
  Statement loaded;
  at::Tensor all;
  loaded.problem = lack_of_memory([&] { all = allgather(as_tensor(std::move(bytes)), own); });
  if (loaded.problem.empty()) {
    const auto* first = sizes.const_data_ptr<std::int64_t>();
    const at::IntArrayRef lengths(first, static_cast<std::size_t>(sizes.numel()));
    loaded.problem = append_parts(codec, all, lengths, set);
  }
  agree_on(subject, loaded, set, options.timeout);
}

// An alltoall in which all rows go to the root moves each object once, with its size. An allgather
// would bring all objects to all ranks; messages would be agreed on one by one, and need the sizes
// first.
void gather_encoded(const std::string& subject, const ListCodec& codec,
                    const BroadcastOptions& options) {
  const ProcessSet set = options.process_set;
  check_member(subject, set);
  std::string bytes = encode_and_agree(subject, codec,
                                       {.lines = {"root rank " + std::to_string(options.root)},
                                        .problem = root_problem(options.root, set)},
                                       set, options.timeout);
  std::vector<std::int64_t> splits(ranks_of(set).size());
  splits[static_cast<std::size_t>(options.root)] = static_cast<std::int64_t>(bytes.size());
  Statement loaded;
  at::Tensor all;
  std::vector<std::int64_t> lengths;
  loaded.problem = lack_of_memory([&] {
    const TensorWork work = alltoall_async(
        as_tensor(std::move(bytes)), splits,
        {.name = subject + "/bytes", .process_set = set, .timeout = options.timeout});
    all = work.wait();
    lengths = work.received_splits();
  });
  if (loaded.problem.empty() && rank_in(set) == options.root) {
    loaded.problem = append_parts(codec, all, lengths, set);
  }
  agree_on(subject, loaded, set, options.timeout);
}

void gather_object(const ListCodec& codec, const BroadcastOptions& options) {
  gather_encoded(subject_of("gather_object", options.name), codec, options);
}

}  // namespace ronde::detail
