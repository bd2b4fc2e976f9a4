// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

#include "ronde/plugin/fabric.h"
#include "tests/support/ranks/give_way.h"
#include "tests/support/ranks/ranks.h"

/// What every fabric must do, as ronde/plugin/fabric.h says. A test calls each of these checks with
/// a function that makes the fabrics of so many ranks; each is then used by a thread of its own.
namespace ronde::test::fabric_contract {

using MakeFabrics = std::function<std::vector<std::unique_ptr<Fabric>>(int ranks)>;
using Bytes = std::vector<unsigned char>;

/// Polls until all messages of the batch have ended.
inline void finish(MessageBatch& batch) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!batch.poll()) {
    check(std::chrono::steady_clock::now() < deadline, "messages end within 30 s");
    give_way();
  }
}

/// What a message holds: no two messages of a test hold the same.
inline Bytes content(std::size_t bytes, int from, int to, int number) {
  Bytes data(bytes);
  std::uint32_t state = 1U + static_cast<std::uint32_t>(from * 100 + to * 10 + number * 7919);
  for (unsigned char& byte : data) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<unsigned char>(state >> 24);
  }
  return data;
}

inline void check_content(const Bytes& got, int from, int to, int number) {
  check(got == content(got.size(), from, to, number),
        "message " + std::to_string(number) + " of " + std::to_string(got.size()) +
            " bytes from rank " + std::to_string(from) + " to rank " + std::to_string(to) +
            " arrives as it was sent");
}

/// `body(rank, fabric)` on a thread for each rank; each then polls until all have ended, as what
/// it has sent may need that, and calls close().
inline void run(const MakeFabrics& make, int ranks,
                const std::function<void(int rank, Fabric& fabric)>& body) {
  std::vector<std::unique_ptr<Fabric>> fabrics = make(ranks);
  std::atomic<int> still_at_work{ranks};
  std::atomic<bool> has_failed{false};
  run_ranks(ranks, [&](int rank) {
    Fabric& fabric = *fabrics[static_cast<std::size_t>(rank)];
    try {
      body(rank, fabric);
    } catch (...) {
      has_failed = true;
      fabric.abort();
      throw;
    }
    --still_at_work;
    const auto none = fabric.make_batch(nullptr);
    while (still_at_work > 0 && !has_failed) {
      static_cast<void>(none->poll());
      std::this_thread::yield();
    }
    if (!has_failed) fabric.close();
  });
}

/// Messages of many sizes, both ways between all ranks at once.
inline void check_sizes(const MakeFabrics& make, int ranks) {
  const std::vector<std::size_t> sizes = {
      1, 2, 7, 64, 1000, 4096, 8191, 8192, 65535, 65536, 262144, 1000003, (3U << 20) - 1, 3U << 20};
  run(make, ranks, [&](int rank, Fabric& fabric) {
    std::deque<Bytes> sent, received;
    const auto batch = fabric.make_batch(nullptr);
    std::uint64_t bytes = 0;
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const MessageTag tag{3, static_cast<std::uint32_t>(i) % Fabric::kStreams};
        received.emplace_back(sizes[i]);
        batch->receive(peer, tag, received.back().data(), sizes[i]);
        sent.push_back(content(sizes[i], rank, peer, static_cast<int>(i)));
        batch->send(peer, tag, sent.back().data(), sizes[i]);
        bytes += sizes[i];
      }
    }
    finish(*batch);
    check_equal(batch->ended(), sent.size() + received.size(), "the number of ended messages");
    auto arrived = received.begin();
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        check_content(*arrived++, peer, rank, static_cast<int>(i));
      }
    }
    check_equal(counter_of(fabric.stats(), "messages"), sent.size(), "messages");
    check_equal(counter_of(fabric.stats(), "sent_bytes"), bytes, "sent_bytes");
  });
}

/// Rank 0 sends messages with one tag, which rank 1 receives in their order. It waits for each of
/// more than 9 bytes.
inline void check_stream(const MakeFabrics& make, int messages,
                         const std::function<std::size_t(int message)>& size_of) {
  run(make, 2, [&](int rank, Fabric& fabric) {
    const auto batch = fabric.make_batch(nullptr);
    std::vector<Bytes> memory;
    for (int i = 0; i < messages; ++i) {
      memory.push_back(rank == 0 ? content(size_of(i), 0, 1, i) : Bytes(size_of(i)));
    }
    for (Bytes& data : memory) {
      if (rank == 0) batch->send(1, {1, 0}, data.data(), data.size());
      if (rank == 1) batch->receive(0, {1, 0}, data.data(), data.size());
      if (rank == 1 && data.size() > 9) finish(*batch);
    }
    finish(*batch);
    for (int i = 0; const Bytes& data : memory) check_content(data, 0, 1, i++);
  });
}

/// Small messages do not arrive before large ones, whether they are received at once or are there
/// long before.
inline void check_order(const MakeFabrics& make) {
  check_stream(make, 60, [](int i) { return std::size_t{i % 3 == 0 ? 200000U : 9U}; });
}

/// What has ended at its sender arrives, however slowly the other rank receives.
inline void check_many(const MakeFabrics& make) {
  check_stream(make, 4000, [](int) { return std::size_t{4000}; });
}

/// Those of other tags are received in another order than they were sent; channels, and the first
/// and the last of each, are apart. Their batches end one after the other.
inline void check_tags(const MakeFabrics& make) {
  run(make, 2, [&](int rank, Fabric& fabric) {
    const std::uint32_t last = fabric.channels() - 1;
    std::vector<MessageTag> tags = {
        {0, 0}, {0, Fabric::kStreams - 1}, {1, 0}, {last, 0}, {last, Fabric::kStreams - 1}};
    for (const std::size_t bytes : {std::size_t{5}, std::size_t{100000}}) {
      std::vector<Bytes> memory;
      std::vector<std::unique_ptr<MessageBatch>> batches;
      for (std::size_t i = 0; i < tags.size(); ++i) {
        batches.push_back(fabric.make_batch(nullptr));
        memory.push_back(rank == 0 ? content(bytes, 0, 1, static_cast<int>(i)) : Bytes(bytes));
      }
      for (std::size_t i = 0; rank == 0 && i < tags.size(); ++i) {
        batches[i]->send(1, tags[i], memory[i].data(), bytes);
      }
      for (std::size_t i = tags.size(); i-- > 0;) {
        if (rank == 1) batches[i]->receive(0, tags[i], memory[i].data(), bytes);
        finish(*batches[i]);
        check_content(memory[i], 0, 1, static_cast<int>(i));
      }
    }
  });
}

/// Batches in flight beside each other end by themselves, and can be used again.
inline void check_batches(const MakeFabrics& make) {
  constexpr int kBatches = 8;
  run(make, 3, [&](int rank, Fabric& fabric) {
    std::vector<std::unique_ptr<MessageBatch>> batches;
    for (int i = 0; i < kBatches; ++i) batches.push_back(fabric.make_batch(nullptr));
    for (int round = 0; round < 5; ++round) {
      std::vector<Bytes> sent, received;
      for (int i = 0; i < kBatches; ++i) {
        const std::size_t bytes = std::size_t{1} << (2 * i + 3);
        sent.push_back(content(bytes, rank, (rank + 1) % 3, i + round * kBatches));
        received.emplace_back(bytes);
        const MessageTag tag{0, static_cast<std::uint32_t>(i)};
        MessageBatch& batch = *batches[static_cast<std::size_t>(i)];
        batch.receive((rank + 2) % 3, tag, received.back().data(), bytes);
        batch.send((rank + 1) % 3, tag, sent.back().data(), bytes);
      }
      for (int i = kBatches; i-- > 0;) finish(*batches[static_cast<std::size_t>(i)]);
      for (int i = 0; i < kBatches; ++i) {
        check_content(received[static_cast<std::size_t>(i)], (rank + 2) % 3, rank,
                      i + round * kBatches);
      }
    }
    for (const auto& batch : batches) check_equal(batch->ended(), 10U, "ended messages");
  });
}

/// No bytes: nothing is posted, so the peer need not be there.
inline void check_nothing(const MakeFabrics& make) {
  run(make, 2, [&](int rank, Fabric& fabric) {
    if (rank == 1) return;
    const auto batch = fabric.make_batch(nullptr);
    batch->send(1, {}, nullptr, 0);
    batch->receive(1, {}, nullptr, 0);
    check(batch->poll(), "an empty batch has ended");
    check_equal(batch->ended(), 0U, "ended messages");
  });
}

/// A message of another size is an error that names its sender and both sizes.
inline void check_wrong_size(const MakeFabrics& make, std::size_t sent, std::size_t expected) {
  std::vector<std::unique_ptr<Fabric>> fabrics = make(2);
  std::atomic<bool> was_refused{false};
  run_ranks(2, [&](int rank) {
    Fabric& fabric = *fabrics[static_cast<std::size_t>(rank)];
    const auto memory = std::make_shared<Bytes>(std::max(sent, expected));
    auto batch = fabric.make_batch(memory);
    ThreadErrors errors;
    errors.catch_from([&] {
      if (rank == 0) {
        batch->send(1, {}, memory->data(), sent);
        // The sender may be told, too.
        ThreadErrors of_sender;
        of_sender.catch_from([&] {
          while (!was_refused) static_cast<void>(batch->poll());
        });
      } else {
        batch->receive(0, {}, memory->data(), expected);
        const Death death = death_of([&] { finish(*batch); });
        check_equal(death.rank, 0, "the rank that is named");
        check_contains(death.text, std::to_string(expected) + " bytes from rank 0");
        check_contains(death.text, std::to_string(sent));
      }
    });
    if (rank == 1) was_refused = true;
    fabric.abort();
    batch.reset();
    errors.rethrow();
  });
}

/// A thread that sleeps on the descriptor, where there is one, wakes for a message.
inline void check_sleep(const MakeFabrics& make, const std::function<void(int descriptor)>& sleep) {
  run(make, 2, [&](int rank, Fabric& fabric) {
    if (fabric.descriptor() < 0) return;
    const auto batch = fabric.make_batch(nullptr);
    for (int round = 0; round < 50; ++round) {
      const bool sends = rank == round % 2;
      auto byte = static_cast<unsigned char>(sends ? round : 255);
      if (sends) batch->send(1 - rank, {}, &byte, 1);
      if (!sends) batch->receive(1 - rank, {}, &byte, 1);
      while (!batch->poll()) {
        if (fabric.prepare_sleep()) sleep(fabric.descriptor());
      }
      check_equal(static_cast<int>(byte), round, "the byte");
    }
  });
}

}  // namespace ronde::test::fabric_contract
