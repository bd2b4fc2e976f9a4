// SPDX-License-Identifier: Apache-2.0
#include "forms.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "oracle.h"

namespace ronde::test {
namespace {

bool is_reduction(const Row& row) {
  return row.kind == Collective::Allreduce || row.kind == Collective::Reducescatter;
}

/// Alltoall: rows from one rank of a set to another.
std::size_t rows_between(int from, int to) {
  return static_cast<std::size_t>((2 * from + to) % 3);
}

/// Alltoall: rows of `from` that go to ranks before `to`.
std::size_t rows_before(int from, int to) {
  std::size_t rows = 0;
  for (int earlier = 0; earlier < to; ++earlier) rows += rows_between(from, earlier);
  return rows;
}

/// Rows of the input of `rank` of a set of `size`.
std::size_t input_rows(Collective kind, int rank, int size) {
  if (kind == Collective::Allgather) return static_cast<std::size_t>(2 * rank + 1);
  if (kind == Collective::Reducescatter) return static_cast<std::size_t>(2 * size + 1);
  return kind == Collective::Alltoall ? rows_before(rank, size) : 3;
}

/// Reducescatter: the first row that `rank` keeps. Rank 0 keeps three rows, each other one two.
std::size_t kept_rows_begin(int rank) {
  return static_cast<std::size_t>(rank == 0 ? 0 : 2 * rank + 1);
}

/// What every member of the set puts in, by its rank in the set.
std::vector<Elements> inputs_of(const Row& row, const Place& place) {
  std::vector<Elements> inputs;
  for (int rank = 0; rank < place.size(); ++rank) {
    const std::size_t count = input_rows(row.kind, rank, place.size()) * row.width;
    const int seed = place.ranks[static_cast<std::size_t>(rank)];
    inputs.push_back(is_reduction(row) ? make_input(row.dtype, row.op, count, seed, 11)
                                       : make_bytes(row.dtype, count, seed, 11));
  }
  return inputs;
}

/// What a collective that only moves elements brings to this rank.
std::vector<std::byte> moved(const Row& row, const Place& place,
                             const std::vector<Elements>& inputs) {
  const int previous = (place.rank + place.size() - 1) % place.size();
  std::vector<std::byte> bytes;
  for (int from = 0; from < place.size(); ++from) {
    if (row.kind == Collective::Broadcast && from != row.root) continue;
    if (row.kind == Collective::Send && from != previous) continue;
    const Elements& input = inputs[static_cast<std::size_t>(from)];
    const auto part = row.kind == Collective::Alltoall
                          ? input.bytes(rows_before(from, place.rank) * row.width,
                                        rows_between(from, place.rank) * row.width)
                          : input.bytes();
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

std::string first_different_byte(const std::vector<std::byte>& expected, const Elements& result) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (result.bytes()[i] == expected[i]) continue;
    return "byte " + std::to_string(i) + " of " + std::to_string(expected.size()) + " is " +
           std::to_string(std::to_integer<int>(result.bytes()[i])) + ", not " +
           std::to_string(std::to_integer<int>(expected[i]));
  }
  return {};
}

std::string difference(const Row& row, const Place& place, const std::vector<Elements>& inputs,
                       const Elements& result) {
  if (!is_reduction(row)) return first_different_byte(moved(row, place, inputs), result);
  const bool scatters = row.kind == Collective::Reducescatter;
  const std::size_t begin = scatters ? kept_rows_begin(place.rank) * row.width : 0;
  return first_difference({.dtype = row.dtype, .op = row.op, .ranks = place.size()}, inputs, result,
                          begin);
}

Elements make_output(const Row& row, const Place& place, const std::vector<Elements>& inputs) {
  if (row.kind == Collective::Reducescatter) {
    return Elements(row.dtype, (place.rank == 0 ? 3 : 2) * row.width);
  }
  if (is_reduction(row)) return Elements(row.dtype, inputs[0].count());
  return Elements(row.dtype, moved(row, place, inputs).size() / size_of(row.dtype));
}

Request request_of(const Row& row, const Place& place) {
  Request request;
  request.kind = row.kind;
  request.name = "row";
  request.dtype = row.dtype;
  request.op = row.op;
  request.set = place.set;
  request.root = row.root;
  const std::size_t rows = input_rows(row.kind, place.rank, place.size());
  request.shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(row.width)};
  if (row.kind == Collective::Alltoall) {
    for (int to = 0; to < place.size(); ++to) {
      request.splits.push_back(static_cast<std::int64_t>(rows_between(place.rank, to)));
    }
  }
  return request;
}

/// Input and output share memory that is large enough for either: at its begin, but for the part
/// that this rank adds to an allgather, or keeps of a reducescatter.
void run_in_place(Runtime& runtime, Request request, const Place& place, const Elements& input,
                  Elements& output) {
  const std::size_t row_bytes = static_cast<std::size_t>(request.shape[1]) * size_of(input.dtype());
  Elements both(input.dtype(), std::max(input.count(), output.count()));
  auto* const begin = static_cast<std::byte*>(both.data());
  std::byte* from = begin;
  std::byte* to = begin;
  if (request.kind == Collective::Allgather) {
    for (int rank = 0; rank < place.rank; ++rank) {
      from += input_rows(request.kind, rank, place.size()) * row_bytes;
    }
  }
  if (request.kind == Collective::Reducescatter) to += kept_rows_begin(place.rank) * row_bytes;
  std::ranges::copy(input.bytes(), from);
  request.input = from;
  request.output = to;
  runtime.run(request);
  std::copy_n(to, output.bytes().size(), static_cast<std::byte*>(output.data()));
}

/// Around the set: to the next rank, from the one before.
void run_message(Runtime& runtime, Request send, const Place& place, const Elements& input,
                 Elements& output, bool from_any) {
  send.name.clear();
  send.input = input.data();
  send.peer = (place.rank + 1) % place.size();
  Request receive = send;
  receive.kind = Collective::Recv;
  receive.input = nullptr;
  receive.output = output.data();
  receive.peer = from_any ? kAnyRank : (place.rank + place.size() - 1) % place.size();
  const Work sent = runtime.submit(send);
  const Work received = runtime.submit(receive);
  sent.wait();
  received.wait();
}

}  // namespace

std::string run_row(const Row& row, Runtime& runtime, const Place& place) {
  const std::vector<Elements> inputs = inputs_of(row, place);
  const Elements& input = inputs[static_cast<std::size_t>(place.rank)];
  Elements output = make_output(row, place, inputs);
  Request request = request_of(row, place);
  if (row.kind == Collective::Send) {
    run_message(runtime, request, place, input, output, row.in_place);
  } else if (row.in_place) {
    run_in_place(runtime, request, place, input, output);
  } else {
    request.input = input.data();
    request.output = output.data();
    runtime.run(request);
  }
  return difference(row, place, inputs, output);
}

}  // namespace ronde::test
