// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/job_key.h"

#include <sodium.h>

#include "ronde/error.h"

namespace ronde::net {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

JobKey::JobKey(std::string_view of_user, std::string_view token) : of_user_(!of_user.empty()) {
  static_assert(crypto_auth_KEYBYTES == std::tuple_size_v<decltype(key_)>);
  static_assert(crypto_auth_BYTES == kProofBytes);
  if (sodium_init() < 0) throw Error("libsodium cannot be initialised");
  std::array<unsigned char, 32> hashed = {};  // of any length before
  crypto_generichash(hashed.data(), hashed.size(), bytes_of(of_user), of_user.size(), nullptr, 0);
  crypto_generichash(key_.data(), key_.size(), bytes_of(token), token.size(), hashed.data(),
                     hashed.size());
  sodium_memzero(hashed.data(), hashed.size());
}

std::array<char, JobKey::kProofBytes> JobKey::prove(std::string_view said) const {
  std::array<char, kProofBytes> proof = {};
  crypto_auth(reinterpret_cast<unsigned char*>(proof.data()), bytes_of(said), said.size(),
              key_.data());
  return proof;
}

bool JobKey::proves(const std::array<char, kProofBytes>& proof, std::string_view said) const {
  return crypto_auth_verify(reinterpret_cast<const unsigned char*>(proof.data()), bytes_of(said),
                            said.size(), key_.data()) == 0;
}

}  // namespace ronde::net
