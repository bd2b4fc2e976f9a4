// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

// Note [Handshake]
// The rank that listens greets each connection with a random number. The rank that connects
// identifies itself (Hello). The answer admits it, or says why not. Hello and Answer end with a
// keyed hash of all that was sent before, including the random numbers of both sides: so each side
// proves that it has the key, which is never sent, and the messages of one handshake prove nothing
// in another. Messages have a fixed length, in the byte order of the host; all ranks have the same,
// as they compare their systems when they meet.
namespace ronde::net {

/// The secret by which two ranks prove to each other that they belong to one job. It is made of
/// RONDE_JOB_KEY and of a token of this start; with neither, a proof is worthless.
class JobKey {
 public:
  /// Length of a proof.
  static constexpr std::size_t kProofBytes = 32;

  /// `of_user`: RONDE_JOB_KEY, or empty. `token`: random bytes that both ranks have, or empty.
  JobKey(std::string_view of_user, std::string_view token);

  /// Whether the user has set RONDE_JOB_KEY.
  bool of_user() const noexcept { return of_user_; }

  /// Returns the keyed hash of `messages`: HMAC-SHA512-256 (RFC 4868), by libsodium's crypto_auth.
  std::array<char, kProofBytes> prove(std::string_view messages) const;

  /// Whether `proof` is the hash of `messages`; compares in constant time.
  bool proves(const std::array<char, kProofBytes>& proof, std::string_view messages) const;

 private:
  std::array<unsigned char, 32> key_ = {};
  bool of_user_;
};

inline constexpr std::uint64_t kMagic = 0x32'65'64'6e'6f'52'01'00;
inline constexpr std::chrono::seconds kHandshakeTimeout{10};

using Proof = std::array<char, JobKey::kProofBytes>;
/// The name of a job, cut or padded with zeros.
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
  std::uint32_t patience_ms = 0;  ///< how much longer the rank waits
  JobName job = {};
  std::array<char, 32> nonce = {};
  Proof proof = {};
};

enum class Verdict : std::uint32_t {
  Admitted,
  OtherJob,
  OtherSize,
  NeedsKey,    ///< the rank that listens has a key, the other one has none
  NeedsNoKey,  ///< the rank that listens has no key, the other one has one
  WrongKey,
  RankIsTaken,  ///< another connection of this rank is still open
  CutOff,       ///< a rank above the one that listens does not answer: Answer::size
};

struct Answer {
  std::uint64_t magic = kMagic;
  std::uint32_t verdict = 0;
  std::uint32_t size = 0;  ///< of the job; if cut off, the rank that does not answer
  JobName job = {};
  Proof proof = {};  ///< only if admitted or cut off
};
static_assert(sizeof(Greeting) == 40 && sizeof(Hello) == 152 && sizeof(Answer) == 112);

/// The properties that must be equal on both sides.
struct Credentials {
  std::string job;  ///< the job's name
  int size = 1;     ///< the job's number of ranks
  JobKey key;
};

JobName to_name(std::string_view job);

/// Returns the hash at the end of a Hello.
Proof proof_of_hello(const JobKey& key, const Greeting& greeting, const Hello& hello);
bool is_proved(const JobKey& key, const Greeting& greeting, const Hello& hello);

/// Returns the hash at the end of an Answer.
Proof proof_of_answer(const JobKey& key, const Greeting& greeting, const Hello& hello,
                      const Answer& answer);
bool is_proved(const JobKey& key, const Greeting& greeting, const Hello& hello,
               const Answer& answer);

/// Returns why `parent`, such as "rank 0 at node1 port 29501", did not admit `rank`, whose
/// credentials are `own`, and what to do.
std::string refusal_text(const Answer& answer, int rank, const std::string& parent,
                         const Credentials& own);

}  // namespace ronde::net
