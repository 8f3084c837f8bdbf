#include "sim/h2m2/token_slots.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/h2m2/pages.hpp"

namespace lamina::h2m2 {

namespace {

constexpr std::int64_t kWordBits = 64;

std::int64_t checked_capacity(std::int64_t columns, std::int64_t slots_of_column) {
  if (columns < 0 || slots_of_column < 1 || columns > INT32_MAX / slots_of_column) {
    throw std::invalid_argument(std::to_string(columns) + " columns of " + std::to_string(slots_of_column) +
                                " token slots are more than can be numbered, or none");
  }
  return columns * slots_of_column;
}

[[noreturn]] void broken(const std::string& what) { throw std::logic_error(what); }

}  // namespace

TokenSlots::TokenSlots(std::int64_t columns, std::int64_t slots_of_column, std::int64_t row_tokens)
    : capacity_(checked_capacity(columns, slots_of_column)),
      slots_of_column_(slots_of_column),
      row_tokens_(row_tokens),
      free_bits_(static_cast<std::size_t>((capacity_ + kWordBits - 1) / kWordBits), ~std::uint64_t{0}),
      live_(static_cast<std::size_t>(columns)) {
  if (row_tokens < 1) throw std::invalid_argument("a row has at least one token");
  if (const auto rest = capacity_ % kWordBits; rest != 0) free_bits_.back() = (std::uint64_t{1} << rest) - 1;
}

void TokenSlots::join(Request request, std::int64_t tokens) {
  if (places_.find(request) != FlatMap::kNone) {
    throw std::invalid_argument("request " + std::to_string(request) + " is here already");
  }
  if (tokens < 0) throw std::invalid_argument("a request cannot have fewer than no tokens");
  require_free(tokens);
  Allocation joining{request, std::vector<Slot>(static_cast<std::size_t>(tokens))};
  if (stored_.size() == stored_.capacity()) stored_.reserve(std::max<std::size_t>(16, stored_.size() * 2));
  places_.insert(request, static_cast<FlatMap::Handle>(stored_.size()));

  // Nothing below can fail.
  for (Slot& slot : joining.slots) slot = take_lowest();
  count(joining.slots, 1);
  rows_ += rows_of(tokens);
  stored_.push_back(std::move(joining));
}

void TokenSlots::grow() {
  require_free(static_cast<std::int64_t>(stored_.size()));
  for (Allocation& each : stored_) {
    if (each.slots.size() == each.slots.capacity())
      each.slots.reserve(std::max<std::size_t>(16, each.slots.size() * 2));
  }

  // Nothing below can fail.
  for (Allocation& each : stored_) {
    const Slot slot = take_lowest();
    std::int64_t& live = live_[static_cast<std::size_t>(slot / slots_of_column_)];
    columns_in_use_ += live == 0;
    ++live;
    rows_ += static_cast<std::int64_t>(each.slots.size()) % row_tokens_ == 0;
    each.slots.push_back(slot);
  }
  tokens_ += static_cast<std::int64_t>(stored_.size());
}

void TokenSlots::leave(Request request) {
  const std::vector<Slot>& slots = stored(request).slots;
  const FlatMap::Handle place = places_.find(request);
  for (const Slot slot : slots) free_bits_[slot / kWordBits] |= std::uint64_t{1} << slot % kWordBits;
  for (const Slot slot : slots) lowest_word_ = std::min<std::size_t>(lowest_word_, slot / kWordBits);
  count(slots, -1);
  rows_ -= rows_of(static_cast<std::int64_t>(slots.size()));

  places_.erase(request);
  if (place + 1 < stored_.size()) {
    stored_[place] = std::move(stored_.back());
    places_.erase(stored_[place].request);
    places_.insert(stored_[place].request,
                   place);  // never more entries than before: no new cells, cannot fail
  }
  stored_.pop_back();
}

std::int64_t TokenSlots::compact() {
  const std::int64_t enough = (tokens_ + slots_of_column_ - 1) / slots_of_column_;
  if (columns_in_use_ <= enough) return 0;
  const auto end = static_cast<Slot>(enough * slots_of_column_);
  std::int64_t copied = 0;
  for (Allocation& each : stored_) {
    for (Slot& slot : each.slots) {
      if (slot < end) continue;
      free_bits_[slot / kWordBits] |= std::uint64_t{1} << slot % kWordBits;
      --live_[static_cast<std::size_t>(slot / slots_of_column_)];
      slot = take_lowest();
      ++live_[static_cast<std::size_t>(slot / slots_of_column_)];
      ++copied;
    }
  }
  columns_in_use_ = std::count_if(live_.begin(), live_.end(), [](std::int64_t n) { return n > 0; });
  return copied;
}

std::vector<TokenSlots::Request> TokenSlots::requests() const {
  std::vector<Request> requests;
  requests.reserve(stored_.size());
  for (const Allocation& each : stored_) requests.push_back(each.request);
  return requests;
}

std::span<const TokenSlots::Slot> TokenSlots::slots(Request request) const { return stored(request).slots; }

void TokenSlots::check_integrity() const {
  std::vector<std::uint64_t> free_bits(free_bits_.size(), ~std::uint64_t{0});
  if (const auto rest = capacity_ % kWordBits; rest != 0) free_bits.back() = (std::uint64_t{1} << rest) - 1;
  std::vector<std::int64_t> live(live_.size());
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  if (places_.size() != stored_.size()) broken("the map of requests and their list differ in number");
  for (std::size_t place = 0; place < stored_.size(); ++place) {
    const Allocation& each = stored_[place];
    const std::string name = "request " + std::to_string(each.request);
    if (places_.find(each.request) != place) broken(name + " is not where the map says");
    for (const Slot slot : each.slots) {
      if (slot >= capacity_) broken(name + " holds a slot that there is not: " + std::to_string(slot));
      std::uint64_t& word = free_bits[slot / kWordBits];
      const std::uint64_t bit = std::uint64_t{1} << slot % kWordBits;
      if ((word & bit) == 0) broken("held twice: slot " + std::to_string(slot));
      word &= ~bit;
      ++live[static_cast<std::size_t>(slot / slots_of_column_)];
    }
    tokens += static_cast<std::int64_t>(each.slots.size());
    rows += rows_of(static_cast<std::int64_t>(each.slots.size()));
  }
  if (free_bits != free_bits_) broken("a slot is neither free nor held, or both");
  for (std::size_t word = 0; word < lowest_word_; ++word) {
    if (free_bits_[word] != 0) broken("a free slot is below what is looked through");
  }
  if (live != live_) broken("the tokens of a column are miscounted");
  const auto in_use = std::count_if(live.begin(), live.end(), [](std::int64_t n) { return n > 0; });
  if (in_use != columns_in_use_) broken("the columns in use are miscounted");
  if (tokens != tokens_) broken("the tokens are miscounted");
  if (rows != rows_) broken("the rows are miscounted");
}

const TokenSlots::Allocation& TokenSlots::stored(Request request) const {
  const FlatMap::Handle place = places_.find(request);
  if (place == FlatMap::kNone) throw std::out_of_range("request " + std::to_string(request) + " is not here");
  return stored_[place];
}

void TokenSlots::require_free(std::int64_t slots) const {
  if (slots <= free()) return;
  throw NoRoom(std::to_string(slots) + " token slots were requested, but only " + std::to_string(free()) +
               " of " + std::to_string(capacity_) + " are free");
}

// There must be one.
TokenSlots::Slot TokenSlots::take_lowest() {
  while (free_bits_[lowest_word_] == 0) ++lowest_word_;
  std::uint64_t& word = free_bits_[lowest_word_];
  const int bit = std::countr_zero(word);
  word &= word - 1;
  return static_cast<Slot>(lowest_word_ * kWordBits + static_cast<std::size_t>(bit));
}

// A request's slots mostly follow each other: the column is looked up only when they leave the last one.
void TokenSlots::count(const std::vector<Slot>& slots, std::int64_t change) {
  std::int64_t column = 0;
  for (const Slot slot : slots) {
    if (slot - column * slots_of_column_ < 0 || slot >= (column + 1) * slots_of_column_) {
      column = slot / slots_of_column_;
    }
    std::int64_t& live = live_[static_cast<std::size_t>(column)];
    columns_in_use_ -= live > 0;
    live += change;
    columns_in_use_ += live > 0;
  }
  tokens_ += change * static_cast<std::int64_t>(slots.size());
}

}  // namespace lamina::h2m2
