// SPDX-License-Identifier: Apache-2.0
#include "mailbox.h"

#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "ronde/error.h"

namespace file_backend {

namespace fs = std::filesystem;

Mailbox::Mailbox(fs::path folder, int rank) : folder_(std::move(folder)), rank_(rank) {}

Mailbox::~Mailbox() {
  std::error_code not_empty_yet;  // the rank that leaves last succeeds
  fs::remove(folder_, not_empty_yet);
}

void Mailbox::post(std::uint64_t number, std::string_view blob, const std::vector<int>& readers) {
  const fs::path draft = folder_ / ("draft." + std::to_string(rank_));
  std::ofstream file(draft, std::ios::binary);
  file.write(blob.data(), static_cast<std::streamsize>(blob.size()));
  file.close();
  if (!file) {
    throw ronde::Error("cannot write " + draft.string());
  }
  try {
    for (const int reader : readers) {
      fs::create_hard_link(draft, link(number, rank_, reader));  // appears complete or not at all
    }
    fs::remove(draft);
  } catch (const fs::filesystem_error& error) {
    throw ronde::Error(error.what());
  }
}

std::optional<std::string> Mailbox::take(std::uint64_t number, int writer) {
  const fs::path path = link(number, writer, rank_);
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  std::string blob(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) {
    throw ronde::Error("cannot read " + path.string());
  }
  std::error_code ignored;  // what stays is removed with the folder
  fs::remove(path, ignored);
  return blob;
}

void Mailbox::remove() noexcept {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

fs::path Mailbox::link(std::uint64_t number, int writer, int reader) const {
  return folder_ /
         (std::to_string(number) + "." + std::to_string(writer) + ".for." + std::to_string(reader));
}

}  // namespace file_backend
