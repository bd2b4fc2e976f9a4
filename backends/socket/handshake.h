// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "backends/socket/job_key.h"

// Note [Handshake]
// Whoever listens greets each connection with a random number. The rank that connects says who it
// is (Hello); the answer is either that it is admitted, or why not. Hello and Answer end with a
// keyed hash of all that was said before, the random numbers of both sides among it: so each side
// proves that it has the key, which itself never travels, and an earlier conversation proves
// nothing. Messages have a fixed length, in the order of bytes of the host, which all ranks share
// (they compare their systems when they meet).
namespace ronde::net {

inline constexpr std::uint64_t kMagic = 0x32'65'64'6e'6f'52'01'00;
inline constexpr std::chrono::seconds kHandshakeTimeout{10};

using Proof = std::array<char, JobKey::kProofBytes>;
/// The name of a job, or its beginning, filled with zeros.
using JobName = std::array<char, 64>;

struct Greeting {
  std::uint64_t magic = kMagic;
  std::array<char, 32> nonce = {};
};

struct Hello {
  std::uint64_t magic = kMagic;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t has_key = 0;
  std::uint32_t patience_ms = 0;  ///< how long the rank will wait
  JobName job = {};
  std::array<char, 32> nonce = {};
  Proof proof = {};
};

enum class Verdict : std::uint32_t {
  Admitted,
  OtherJob,
  OtherSize,
  NeedsKey,    ///< the rank that listens has a key, the other one has none
  NeedsNoKey,  ///< the other way round
  WrongKey,
  RankIsTaken,  ///< by a connection that is still there
};

struct Answer {
  std::uint64_t magic = kMagic;
  std::uint32_t verdict = 0;
  std::uint32_t size = 0;
  JobName job = {};
  Proof proof = {};  ///< if admitted
};
static_assert(sizeof(Greeting) == 40 && sizeof(Hello) == 152 && sizeof(Answer) == 112);

/// What both sides must have in common.
struct Credentials {
  std::string job;  ///< its name
  int size = 1;     ///< its number of ranks
  JobKey key;
};

JobName to_name(std::string_view job);

/// The hash with which the rank that connects ends its Hello.
Proof proof_of_hello(const JobKey& key, const Greeting& greeting, const Hello& hello);
bool is_proved(const JobKey& key, const Greeting& greeting, const Hello& hello);

/// The same for the answer to it.
Proof proof_of_answer(const JobKey& key, const Greeting& greeting, const Hello& hello,
                      const Answer& answer);
bool is_proved(const JobKey& key, const Greeting& greeting, const Hello& hello,
               const Answer& answer);

/// Why rank `rank`, which has `own`, was not admitted by `parent`, "rank 0 at node1 port 29501",
/// and what to do.
std::string refusal_text(const Answer& answer, int rank, const std::string& parent,
                         const Credentials& own);

}  // namespace ronde::net
