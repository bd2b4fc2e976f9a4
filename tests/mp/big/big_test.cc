// SPDX-License-Identifier: Apache-2.0
// Counts that no int holds. RONDE_FUSION_BYTES decides whether MPI sees them at once or in chunks.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "case_table.h"
#include "ronde/ronde.h"

namespace ronde::test {
namespace {

constexpr std::size_t kCount = (std::size_t{1} << 31) + 12345;

/// Bytes without the zeroing of a vector.
class Bytes {
 public:
  explicit Bytes(std::size_t count) : data_(new std::uint8_t[count]), count_(count) {}
  std::uint8_t* begin() const { return data_.get(); }
  std::uint8_t* end() const { return data_.get() + count_; }

 private:
  std::unique_ptr<std::uint8_t[]> data_;
  std::size_t count_;
};

/// Differs between ranks, and between an element and its neighbours 2^31 or 2^32 before it.
std::uint8_t value_at(std::size_t index, int rank) {
  return static_cast<std::uint8_t>(index * 7 + (index >> 29) * 31 +
                                   static_cast<std::size_t>(rank) * 101);
}

void fill(std::uint8_t* begin, std::size_t count, int rank) {
  for (std::size_t i = 0; i < count; ++i) begin[i] = value_at(i, rank);
}

template <typename Expected>
std::size_t first_difference(const std::uint8_t* begin, std::size_t count, Expected expected) {
  for (std::size_t i = 0; i < count; ++i) {
    if (begin[i] != expected(i)) return i;
  }
  return count;
}

Request request_of(Collective kind, std::size_t count) {
  Request request;
  request.kind = kind;
  request.name = "big";
  request.dtype = DataType::U8;
  request.shape = {static_cast<std::int64_t>(count)};
  return request;
}

TEST_CASE("allreduce of more than 2^31 elements") {
  ronde::init();
  const Bytes values(kCount);
  fill(values.begin(), kCount, ronde::rank());
  Request request = request_of(Collective::Allreduce, kCount);
  request.input = request.output = values.begin();
  ronde::submit(std::move(request)).wait();
  const auto sum = [](std::size_t i) {
    return static_cast<std::uint8_t>(value_at(i, 0) + value_at(i, 1));
  };
  CHECK(first_difference(values.begin(), kCount, sum) == kCount);
  ronde::shutdown();
}

TEST_CASE("broadcast of more than 2^31 elements") {
  ronde::init();
  const Bytes values(kCount);
  fill(values.begin(), kCount, ronde::rank());
  Request request = request_of(Collective::Broadcast, kCount);
  request.root = 1;
  request.input = request.output = values.begin();
  ronde::submit(std::move(request)).wait();
  const auto root = [](std::size_t i) { return value_at(i, 1); };
  CHECK(first_difference(values.begin(), kCount, root) == kCount);
  ronde::shutdown();
}

TEST_CASE("message of more than 2^31 elements") {
  ronde::init();
  const Bytes values(kCount);
  const bool sends = ronde::rank() == 1;
  fill(values.begin(), kCount, ronde::rank());
  Request request = request_of(sends ? Collective::Send : Collective::Recv, kCount);
  request.name.clear();
  request.input = sends ? values.begin() : nullptr;
  request.output = sends ? nullptr : values.begin();
  request.peer = 1 - ronde::rank();
  ronde::submit(std::move(request)).wait();
  const auto sent = [](std::size_t i) { return value_at(i, 1); };
  CHECK(first_difference(values.begin(), kCount, sent) == kCount);
  ronde::shutdown();
}

TEST_CASE("allgather of more than 2^31 elements") {
  ronde::init();
  // Rank 1 brings more, so that parts differ in size; together they are above the limit.
  const std::size_t counts[] = {kCount / 2 - 1000, kCount / 2 + 1001};
  const std::size_t own = counts[ronde::rank()];
  const Bytes input(own);
  const Bytes output(counts[0] + counts[1]);
  fill(input.begin(), own, ronde::rank());
  std::fill(output.begin(), output.end(), std::uint8_t{0});
  Request request = request_of(Collective::Allgather, own);
  request.input = input.begin();
  request.output = output.begin();
  ronde::submit(std::move(request)).wait();
  for (const int rank : {0, 1}) {
    const std::uint8_t* const part = output.begin() + (rank == 0 ? 0 : counts[0]);
    const auto expected = [rank](std::size_t i) { return value_at(i, rank); };
    CHECK(first_difference(part, counts[rank], expected) == counts[rank]);
  }
  ronde::shutdown();
}

TEST_CASE("alltoall of more than 2^31 elements") {
  ronde::init();
  const int own = ronde::rank();
  // counts[from][to]
  const std::size_t counts[2][2] = {{kCount / 2 - 1000, kCount / 2 + 1001},
                                    {kCount / 2 + 7, kCount / 2 - 6}};
  const auto marked = [](int from, int to) { return 2 * from + to; };
  const Bytes input(counts[own][0] + counts[own][1]);
  fill(input.begin(), counts[own][0], marked(own, 0));
  fill(input.begin() + counts[own][0], counts[own][1], marked(own, 1));
  const Bytes output(counts[0][own] + counts[1][own]);
  std::fill(output.begin(), output.end(), std::uint8_t{0});
  Request request = request_of(Collective::Alltoall, counts[own][0] + counts[own][1]);
  request.splits = {static_cast<std::int64_t>(counts[own][0]),
                    static_cast<std::int64_t>(counts[own][1])};
  request.input = input.begin();
  request.output = output.begin();
  ronde::submit(std::move(request)).wait();
  for (const int from : {0, 1}) {
    const std::uint8_t* const part = output.begin() + (from == 0 ? 0 : counts[0][own]);
    const auto expected = [&](std::size_t i) { return value_at(i, marked(from, own)); };
    CHECK(first_difference(part, counts[from][own], expected) == counts[from][own]);
  }
  ronde::shutdown();
}

TEST_CASE("reducescatter of more than 2^31 elements") {
  ronde::init();
  const Bytes input(kCount);
  fill(input.begin(), kCount, ronde::rank());
  // Of an odd number of rows rank 0 gets one more.
  const std::size_t first = ronde::rank() == 0 ? 0 : kCount / 2 + 1;
  const std::size_t own = ronde::rank() == 0 ? kCount / 2 + 1 : kCount / 2;
  const Bytes output(own);
  std::fill(output.begin(), output.end(), std::uint8_t{0});
  Request request = request_of(Collective::Reducescatter, kCount);
  request.input = input.begin();
  request.output = output.begin();
  ronde::submit(std::move(request)).wait();
  const auto sum = [first](std::size_t i) {
    return static_cast<std::uint8_t>(value_at(first + i, 0) + value_at(first + i, 1));
  };
  CHECK(first_difference(output.begin(), own, sum) == own);
  ronde::shutdown();
}

}  // namespace
}  // namespace ronde::test
