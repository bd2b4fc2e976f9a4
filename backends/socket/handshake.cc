// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/handshake.h"

#include <algorithm>

namespace ronde::net {
namespace {

template <typename Message>
std::string_view bytes_of(const Message& message) {
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

/// All but the proof at its end.
template <typename Message>
std::string_view claim_of(const Message& message) {
  return bytes_of(message).substr(0, sizeof message - sizeof(Proof));
}

std::string said(const Greeting& greeting, const Hello& hello) {
  return std::string("connects").append(bytes_of(greeting)).append(claim_of(hello));
}

std::string said(const Greeting& greeting, const Hello& hello, const Answer& answer) {
  return std::string("listens ")
      .append(bytes_of(greeting))
      .append(bytes_of(hello))
      .append(claim_of(answer));
}

/// A stranger may have sent it.
std::string to_text(const JobName& job) {
  std::string text(job.begin(), std::find(job.begin(), job.end(), '\0'));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.empty() ? "a job without a name" : text;
}

}  // namespace

JobName to_name(std::string_view job) {
  JobName name = {};
  std::copy_n(job.begin(), std::min(job.size(), name.size()), name.begin());
  return name;
}

Proof proof_of_hello(const JobKey& key, const Greeting& greeting, const Hello& hello) {
  return key.prove(said(greeting, hello));
}

bool is_proved(const JobKey& key, const Greeting& greeting, const Hello& hello) {
  return key.proves(hello.proof, said(greeting, hello));
}

Proof proof_of_answer(const JobKey& key, const Greeting& greeting, const Hello& hello,
                      const Answer& answer) {
  return key.prove(said(greeting, hello, answer));
}

bool is_proved(const JobKey& key, const Greeting& greeting, const Hello& hello,
               const Answer& answer) {
  return key.proves(answer.proof, said(greeting, hello, answer));
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
      return self + " is there already, says " + parent +
             ": two processes were given this number, or two jobs use one port. Give each process "
             "its own rank, and each job a RONDE_PORT of its own";
    case Verdict::Admitted:
      break;
  }
  return self + " was refused by " + parent + " for a reason that this version does not know";
}

}  // namespace ronde::net
