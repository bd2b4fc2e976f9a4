// SPDX-License-Identifier: Apache-2.0
#include "forms.h"

#include <cstring>
#include <utility>

namespace ronde::test {
namespace {

constexpr int kRoot = 0;

std::byte* at(Elements& elements, std::size_t row) {
  return static_cast<std::byte*>(elements.data()) + row * kWidth * size_of(elements.dtype());
}

std::size_t own_rows_after_scatter(const Place& place, std::size_t rows) {
  const auto size = static_cast<std::size_t>(place.size());
  return rows / size + (static_cast<std::size_t>(place.rank) < rows % size ? 1 : 0);
}

std::size_t scattered_before(const Place& place, std::size_t rows) {
  const auto size = static_cast<std::size_t>(place.size());
  const auto rank = static_cast<std::size_t>(place.rank);
  return rank * (rows / size) + std::min(rank, rows % size);
}

Request request_of(const Case& row, const Place& place, std::size_t rows) {
  Request request;
  request.kind = row.kind;
  request.name = "case";
  request.dtype = row.dtype;
  request.op = row.op;
  request.set = place.set;
  request.shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(kWidth)};
  return request;
}

/// Allreduce and broadcast: as many elements go in as come out.
Elements run_alike(Runtime& runtime, const Case& row, const Place& place, Elements input,
                   bool in_place) {
  Elements output(row.dtype, input.count());
  Request request = request_of(row, place, rows_of(row, place.rank, place.size()));
  request.root = kRoot;
  request.input = input.data();
  request.output = in_place ? input.data() : output.data();
  runtime.run(request);
  return in_place ? input : output;
}

Elements run_allgather(Runtime& runtime, const Case& row, const Place& place, const Elements& input,
                       bool in_place) {
  std::size_t total = 0;
  std::size_t before = 0;
  for (int rank = 0; rank < place.size(); ++rank) {
    if (rank < place.rank) before += rows_of(row, rank, place.size());
    total += rows_of(row, rank, place.size());
  }
  Elements output(row.dtype, total * kWidth);
  Request request = request_of(row, place, rows_of(row, place.rank, place.size()));
  request.output = output.data();
  request.input = input.data();
  if (in_place) {
    std::memcpy(at(output, before), input.data(), input.bytes().size());
    request.input = at(output, before);
  }
  runtime.run(request);
  return output;
}

Elements run_alltoall(Runtime& runtime, const Case& row, const Place& place, Elements input,
                      bool in_place) {
  Request request = request_of(row, place, rows_of(row, place.rank, place.size()));
  std::size_t received = 0;
  for (int other = 0; other < place.size(); ++other) {
    request.splits.push_back(static_cast<std::int64_t>(rows_between(place.rank, other)));
    received += rows_between(other, place.rank);
  }
  // In place: in memory that is large enough for both.
  Elements both(row.dtype, std::max(input.count(), received * kWidth));
  std::memcpy(both.data(), input.data(), input.bytes().size());
  Elements output(row.dtype, received * kWidth);
  request.input = in_place ? both.data() : input.data();
  request.output = in_place ? both.data() : output.data();
  runtime.run(request);
  if (in_place) std::memcpy(output.data(), both.data(), output.bytes().size());
  return output;
}

Elements run_reducescatter(Runtime& runtime, const Case& row, const Place& place, Elements input,
                           bool in_place) {
  const std::size_t rows = rows_of(row, place.rank, place.size());
  Elements output(row.dtype, own_rows_after_scatter(place, rows) * kWidth);
  Request request = request_of(row, place, rows);
  request.input = input.data();
  std::byte* const own_part = at(input, scattered_before(place, rows));
  request.output = in_place ? own_part : output.data();
  runtime.run(request);
  if (in_place) std::memcpy(output.data(), own_part, output.bytes().size());
  return output;
}

/// Around the set: to the next rank, from the one before.
Elements run_message(Runtime& runtime, const Case& row, const Place& place, const Elements& input,
                     bool in_place) {
  Elements output(row.dtype, input.count());
  Request send = request_of(row, place, rows_of(row, place.rank, place.size()));
  send.name.clear();
  send.kind = Collective::Send;
  send.input = input.data();
  send.peer = (place.rank + 1) % place.size();
  Request receive = send;
  receive.kind = Collective::Recv;
  receive.input = nullptr;
  receive.output = output.data();
  // Its two forms: from a rank, or from any.
  receive.peer = in_place ? kAnyRank : (place.rank + place.size() - 1) % place.size();
  const Work sent = runtime.submit(send);
  const Work received = runtime.submit(receive);
  sent.wait();
  received.wait();
  return output;
}

}  // namespace

std::size_t rows_of(const Case& row, int rank, int size) {
  if (row.kind == Collective::Allgather) return static_cast<std::size_t>(2 * rank + 1);
  if (row.kind == Collective::Reducescatter) return static_cast<std::size_t>(2 * size + 1);
  if (row.kind != Collective::Alltoall) return 3;
  std::size_t rows = 0;
  for (int to = 0; to < size; ++to) rows += rows_between(rank, to);
  return rows;
}

std::size_t rows_between(int from, int to) {
  return static_cast<std::size_t>((2 * from + to) % 3);
}

std::vector<Elements> inputs_of(const Case& row, const Place& place) {
  std::vector<Elements> inputs;
  for (int rank = 0; rank < place.size(); ++rank) {
    const std::size_t count = rows_of(row, rank, place.size()) * kWidth;
    const int seed = place.ranks[static_cast<std::size_t>(rank)];
    const bool reduces = row.kind == Collective::Allreduce || row.kind == Collective::Reducescatter;
    inputs.push_back(reduces ? make_input(row.dtype, row.op, count, seed, 11)
                             : make_bytes(row.dtype, count, seed, 11));
  }
  return inputs;
}

Elements run_case(Runtime& runtime, const Case& row, const Place& place,
                  const std::vector<Elements>& inputs, bool in_place) {
  const Elements& input = inputs[static_cast<std::size_t>(place.rank)];
  switch (row.kind) {
    case Collective::Allgather:
      return run_allgather(runtime, row, place, input, in_place);
    case Collective::Alltoall:
      return run_alltoall(runtime, row, place, input, in_place);
    case Collective::Reducescatter:
      return run_reducescatter(runtime, row, place, input, in_place);
    case Collective::Send:
      return run_message(runtime, row, place, input, in_place);
    default:
      return run_alike(runtime, row, place, input, in_place);
  }
}

}  // namespace ronde::test
