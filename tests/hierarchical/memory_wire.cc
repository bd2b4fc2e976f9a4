// SPDX-License-Identifier: Apache-2.0
#include "memory_wire.h"

#include <algorithm>
#include <cstring>

#include "ronde/error.h"

namespace ronde::test {

void Exchange::post(int from, int to, hierarchical::Wire::Kind kind,
                    std::shared_ptr<Message> message) {
  const std::lock_guard lock(mutex_);
  messages_[{from, to, kind}].push_back(std::move(message));
}

bool Exchange::take(int from, int to, hierarchical::Wire::Kind kind, std::byte* memory,
                    std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto& waiting = messages_[{from, to, kind}];
  if (waiting.empty()) return false;
  Message& message = *waiting.front();
  if (message.bytes != bytes) throw Error("a message is not as large as expected");
  std::memcpy(memory, message.from, bytes);
  message.is_taken = true;
  waiting.pop_front();
  return true;
}

bool Exchange::is_taken(const Message& message) {
  const std::lock_guard lock(mutex_);
  return message.is_taken;
}

void MemoryWire::send(std::size_t batch, std::size_t host, Kind kind, const std::byte* from,
                      std::size_t bytes) {
  const auto message = std::make_shared<Exchange::Message>(Exchange::Message{from, bytes});
  sends_[batch].push_back(message);
  exchange_.post(rank_, peers_.at(host), kind, message);
}

void MemoryWire::receive(std::size_t batch, std::size_t host, Kind kind, std::byte* to,
                         std::size_t bytes) {
  receives_[{peers_.at(host), kind}].push_back({batch, to, bytes});
}

bool MemoryWire::received_all(std::size_t batch) {
  bool all = true;
  for (auto& [way, waiting] : receives_) {
    const auto [peer, kind] = way;
    while (!waiting.empty() &&
           exchange_.take(peer, rank_, kind, waiting.front().to, waiting.front().bytes)) {
      waiting.pop_front();
    }
    all = all && std::none_of(waiting.begin(), waiting.end(),
                              [&](const Receive& each) { return each.batch == batch; });
  }
  return all;
}

bool MemoryWire::done(std::size_t batch) {
  auto& sends = sends_[batch];
  std::erase_if(sends, [&](const auto& message) { return exchange_.is_taken(*message); });
  return received_all(batch) && sends.empty();
}

}  // namespace ronde::test
