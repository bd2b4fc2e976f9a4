// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace ronde::net {

/// The secret by which two ranks prove to each other that they belong to one job: RONDE_JOB_KEY,
/// and what they alone know of this start. With neither it proves nothing.
class JobKey {
 public:
  /// Length of a proof.
  static constexpr std::size_t kProofBytes = 32;

  /// `of_user`: RONDE_JOB_KEY, or empty. `token`: random bytes that both ranks were given, or
  /// empty.
  JobKey(std::string_view of_user, std::string_view token);

  /// The user gave a key.
  bool of_user() const noexcept { return of_user_; }

  /// Keyed hash of what was said: HMAC-SHA512-256 (RFC 4868), by libsodium's crypto_auth.
  std::array<char, kProofBytes> prove(std::string_view said) const;

  /// In a time that does not depend on where the proofs differ.
  bool proves(const std::array<char, kProofBytes>& proof, std::string_view said) const;

 private:
  std::array<unsigned char, 32> key_ = {};
  bool of_user_;
};

}  // namespace ronde::net
