// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/handshake.h"

#include <sodium.h>

#include <algorithm>

#include "ronde/error.h"

namespace ronde::net {
namespace {

const unsigned char* unsigned_bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

template <typename Message>
std::string_view bytes_of(const Message& message) {
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

/// Returns the bytes of a message without the proof at its end.
template <typename Message>
std::string_view claim_of(const Message& message) {
  return bytes_of(message).substr(0, sizeof message - sizeof(Proof));
}

std::string transcript(const Greeting& greeting, const Hello& hello) {
  return std::string("connects").append(bytes_of(greeting)).append(claim_of(hello));
}

std::string transcript(const Greeting& greeting, const Hello& hello, const Answer& answer) {
  return std::string("listens ")
      .append(bytes_of(greeting))
      .append(bytes_of(hello))
      .append(claim_of(answer));
}

/// Replaces unprintable characters, as a stranger may have sent the name.
std::string to_text(const JobName& job) {
  std::string text(job.begin(), std::find(job.begin(), job.end(), '\0'));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.empty() ? "a job without a name" : text;
}

}  // namespace

JobKey::JobKey(std::string_view of_user, std::string_view token) : of_user_(!of_user.empty()) {
  static_assert(crypto_auth_KEYBYTES == std::tuple_size_v<decltype(key_)>);
  static_assert(crypto_auth_BYTES == kProofBytes);
  if (sodium_init() < 0) throw Error("libsodium cannot be initialised");
  std::array<unsigned char, 32> hashed = {};  // a user's key may have any length
  crypto_generichash(hashed.data(), hashed.size(), unsigned_bytes(of_user), of_user.size(), nullptr,
                     0);
  crypto_generichash(key_.data(), key_.size(), unsigned_bytes(token), token.size(), hashed.data(),
                     hashed.size());
  sodium_memzero(hashed.data(), hashed.size());
}

std::array<char, JobKey::kProofBytes> JobKey::prove(std::string_view messages) const {
  std::array<char, kProofBytes> proof = {};
  crypto_auth(reinterpret_cast<unsigned char*>(proof.data()), unsigned_bytes(messages),
              messages.size(), key_.data());
  return proof;
}

bool JobKey::proves(const std::array<char, kProofBytes>& proof, std::string_view messages) const {
  return crypto_auth_verify(reinterpret_cast<const unsigned char*>(proof.data()),
                            unsigned_bytes(messages), messages.size(), key_.data()) == 0;
}

JobName to_name(std::string_view job) {
  JobName name = {};
  std::copy_n(job.begin(), std::min(job.size(), name.size()), name.begin());
  return name;
}

Proof proof_of_hello(const JobKey& key, const Greeting& greeting, const Hello& hello) {
  return key.prove(transcript(greeting, hello));
}

bool is_proved(const JobKey& key, const Greeting& greeting, const Hello& hello) {
  return key.proves(hello.proof, transcript(greeting, hello));
}

Proof proof_of_answer(const JobKey& key, const Greeting& greeting, const Hello& hello,
                      const Answer& answer) {
  return key.prove(transcript(greeting, hello, answer));
}

bool is_proved(const JobKey& key, const Greeting& greeting, const Hello& hello,
               const Answer& answer) {
  return key.proves(answer.proof, transcript(greeting, hello, answer));
}

std::string refusal_text(const Answer& answer, int rank, const std::string& parent,
                         const Credentials& own) {
  const std::string self = "rank " + std::to_string(rank);
  switch (static_cast<Verdict>(answer.verdict)) {
    case Verdict::OtherJob:
      return self + " is of " + to_text(to_name(own.job)) + ", " + parent + " of " +
             to_text(answer.job) + ": give each job a RONDE_PORT of its own";
    case Verdict::OtherSize:
      return self + " was started as one of " + std::to_string(own.size) + " ranks, " + parent +
             " as one of " + std::to_string(answer.size) +
             ": start all with the same number; if these are two jobs, give each a RONDE_PORT of "
             "its own";
    case Verdict::NeedsKey:
      return self + " has no RONDE_JOB_KEY, but " + parent + " has one: set the same for all ranks";
    case Verdict::NeedsNoKey:
      return self + " has a RONDE_JOB_KEY, but " + parent + " has none: set the same for all ranks";
    case Verdict::WrongKey:
      return "the RONDE_JOB_KEY of " + self + " is not that of " + parent +
             ": set the same for all ranks; if these are two jobs, give each a RONDE_PORT of its "
             "own";
    case Verdict::RankIsTaken:
      return self + " is connected already, says " + parent +
             ": two processes were given this number, or two jobs use one port. Give each process "
             "its own rank, and each job a RONDE_PORT of its own";
    case Verdict::CutOff: {
      const std::string silent = "rank " + std::to_string(answer.size);
      return self + " cannot join the others by way of " + parent + ": " + silent +
             ", above both, does not answer; see whether it is stopped or hangs";
    }
    case Verdict::Admitted:
      break;
  }
  return self + " was refused by " + parent + " for a reason that this version does not know";
}

}  // namespace ronde::net
