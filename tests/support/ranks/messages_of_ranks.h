// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {

// The hosts of three ranks: a leader speaks for others, or not.
inline const std::vector<int> kOneHost = {0, 0, 0};
inline const std::vector<int> kLeaderAndOne = {0, 1, 1};
inline const std::vector<int> kTwoRanks = {0, 0};

/// What rank `from` sends under `number`.
inline float value_of(int from, int number) {
  return static_cast<float>(1000 * from + number);
}

/// Any bytes, another pattern for each rank.
inline TensorValues pattern(DataType dtype, std::size_t count, int rank) {
  TensorValues elements(dtype, count);
  auto* bytes = static_cast<std::uint8_t*>(elements.data());
  for (std::size_t i = 0; i < elements.bytes(); ++i) {
    bytes[i] = static_cast<std::uint8_t>((i * 31 + i / 251 + static_cast<std::size_t>(rank) * 97));
  }
  return elements;
}

inline void pass_around(int rank, int ranks, Runtime& runtime, DataType dtype, std::size_t count) {
  const int next = (rank + 1) % ranks;
  const int previous = (rank + ranks - 1) % ranks;
  const TensorValues mine = pattern(dtype, count, rank);
  TensorValues theirs(dtype, count);
  Request send;
  send.kind = Collective::Send;
  send.dtype = dtype;
  send.shape = {static_cast<std::int64_t>(count)};
  send.input = count > 0 ? mine.data() : nullptr;
  send.peer = next;
  Request receive = send;
  receive.kind = Collective::Recv;
  receive.input = nullptr;
  receive.output = count > 0 ? theirs.data() : nullptr;
  receive.shape = {1, static_cast<std::int64_t>(count), 1};  // the count is the same
  receive.peer = previous;
  const Work received = runtime.submit(receive);
  runtime.submit(send).wait();
  received.wait();
  check(theirs == pattern(dtype, count, previous),
        std::to_string(count) + " elements of " + std::string(to_string(dtype)));
  check(received.source() == previous, "where it came from");
}

}  // namespace ronde::test
