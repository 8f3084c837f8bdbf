#include "sim/h2m2/memory.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace lamina::h2m2 {

namespace {

constexpr std::size_t at(Where side) { return static_cast<std::size_t>(side); }

std::int64_t checked_columns(const Board& board, const Shape& shape, std::int64_t columns) {
  const std::int64_t most = most_columns(board, shape);
  if (columns >= 1 && columns <= most) return columns;
  throw std::invalid_argument("the board has room for " + std::to_string(most) +
                              " KV columns next to the weights, and " + std::to_string(columns) +
                              " are requested");
}

}  // namespace

Memory::Memory(const Board& board, const Shape& shape, std::int64_t kv_columns)
    : layout_(board, shape, checked_columns(board, shape, kv_columns)),
      room_of_column_(paged_room(board, shape, 1)),
      slots_(kv_columns, slots_of_column(board, shape), board.mv_rows),
      pages_(layout_.pages(), frames_of(board.hbm, board), frames_of(board.lpddr, board)),
      placed_(static_cast<std::size_t>(kv_columns)) {}

Room Memory::room() const {
  Room room = room_of_column_;
  room.unit.attention *= static_cast<double>(slots_.columns_in_use());
  return room;
}

Memory::Traffic Memory::apply(const Mapping& mapping) {
  layout_.require_possible(mapping);
  require_fits(mapping);
  find_changes(mapping);

  // Nothing below can fail.
  const Traffic traffic = carry_out();
  for (std::size_t column = 0; column < placed_.size(); ++column) {
    placed_[column] = slots_.live(static_cast<std::int64_t>(column)) > 0;
  }
  columns_placed_ = slots_.columns_in_use();
  mapping_ = mapping;
  return traffic;
}

Memory::Occupancy Memory::occupancy() const {
  if (!mapping_) return {};
  const Layout::Use use = layout_.use(*mapping_, columns_placed_);
  std::int64_t stored = 0;
  for (std::size_t column = 0; column < placed_.size(); ++column) {
    if (placed_[column]) stored += slots_.live(static_cast<std::int64_t>(column));
  }
  const std::int64_t content = layout_.weight_bytes() + stored * layout_.slot_bytes();
  const std::int64_t wasted = (use.hbm() + use.lpddr) * layout_.page_bytes() - content;
  return {use.hbm_qkv, use.hbm_kv, use.hbm_fc, use.lpddr, wasted};
}

void Memory::check_integrity() const {
  pages_.check_integrity();
  slots_.check_integrity();
  for (int layer = 0; layer < layout_.layers(); ++layer) {
    for (const Layout::Part part : {Layout::Part::kQkv, Layout::Part::kFc}) {
      const Split split = mapping_ ? layout_.split(*mapping_, layer, part) : Split{};
      check_weights(layout_.weights_begin(layer, part), layout_.region(part).pages(), split);
    }
    for (int head = 0; head < layout_.kv_heads(); ++head) {
      const Sides sides = sides_of_kv(mapping_, layer, head);
      for (std::size_t column = 0; column < placed_.size(); ++column) {
        check_page(layout_.kv(layer, head, static_cast<std::int64_t>(column)),
                   placed_[column] ? sides : Sides{});
      }
    }
  }
  check_weights(layout_.lm_head_begin(), layout_.lm_head().pages(),
                mapping_ ? layout_.lm_head_split(*mapping_) : Split{});
  if (std::count(placed_.begin(), placed_.end(), true) != columns_placed_) {
    throw std::logic_error("the columns that are placed are miscounted");
  }
  const Occupancy occupancy = this->occupancy();
  if (occupancy.hbm_qkv + occupancy.hbm_kv + occupancy.hbm_fc != pages_.used(Where::kHbm) ||
      occupancy.lpddr != pages_.used(Where::kLpddr)) {
    throw std::logic_error("the pages in use are not those of the mapping");
  }
}

Memory::Sides Memory::sides_of(const Split& split, std::int64_t at) {
  return {at < split.hbm_end, at >= split.lpddr_begin};
}

Memory::Sides Memory::sides_of_kv(const std::optional<Mapping>& mapping, int layer, int kv_head) const {
  if (!mapping) return {};
  const bool hbm = kv_head < layout_.kv_heads_in_hbm(*mapping, layer);
  return {hbm, !hbm};
}

// One free frame, on whichever side, is what carry_out() needs to make progress.
void Memory::require_fits(const Mapping& mapping) const {
  const Layout::Use use = layout_.use(mapping, slots_.columns_in_use());
  const std::int64_t hbm = pages_.frames(Where::kHbm) - use.hbm();
  const std::int64_t lpddr = pages_.frames(Where::kLpddr) - use.lpddr;
  if (hbm >= 0 && lpddr >= 0 && hbm + lpddr >= 1) return;
  throw NoRoom("the mapping needs " + std::to_string(use.hbm()) + " pages in HBM and " +
               std::to_string(use.lpddr) + " in LPDDR, of " + std::to_string(pages_.frames(Where::kHbm)) +
               " and " + std::to_string(pages_.frames(Where::kLpddr)) + ", and one has to stay free");
}

void Memory::find_changes(const Mapping& mapping) {
  for (auto* list : {&changes_.freed, &changes_.moved, &changes_.copied, &changes_.allocated}) {
    for (std::vector<Pages::Page>& pages : *list) pages.clear();
  }
  if (mapping_ != mapping) {
    for (int layer = 0; layer < layout_.layers(); ++layer) {
      for (const Layout::Part part : {Layout::Part::kQkv, Layout::Part::kFc}) {
        std::optional<Split> before;
        if (mapping_) before = layout_.split(*mapping_, layer, part);
        find_changes_of_weights(layout_.weights_begin(layer, part), layout_.region(part).pages(), before,
                                layout_.split(mapping, layer, part));
      }
    }
    std::optional<Split> before;
    if (mapping_) before = layout_.lm_head_split(*mapping_);
    find_changes_of_weights(layout_.lm_head_begin(), layout_.lm_head().pages(), before,
                            layout_.lm_head_split(mapping));
  }
  for (std::int64_t column = 0; column < slots_.columns(); ++column) find_changes_of_column(column, mapping);
}

void Memory::find_changes_of_weights(Pages::Page begin, std::int64_t pages,
                                     const std::optional<Split>& before, const Split& after) {
  if (before == after) return;
  // Only between the two boundaries does anything change.
  const std::int64_t first = before ? std::min(before->lpddr_begin, after.lpddr_begin) : 0;
  const std::int64_t end = before ? std::max(before->hbm_end, after.hbm_end) : pages;
  for (std::int64_t at = first; at < end; ++at) {
    note(begin + static_cast<Pages::Page>(at), before ? sides_of(*before, at) : Sides{}, sides_of(after, at));
  }
}

void Memory::find_changes_of_column(std::int64_t column, const Mapping& mapping) {
  const bool was = placed_[static_cast<std::size_t>(column)];
  const bool is = slots_.live(column) > 0;
  if (!was && !is) return;
  if (was && is && mapping_ == mapping) return;
  for (int layer = 0; layer < layout_.layers(); ++layer) {
    int first = 0;
    int end = layout_.kv_heads();
    if (was && is) {  // only heads between the two boundaries change sides
      const int before = layout_.kv_heads_in_hbm(*mapping_, layer);
      const int after = layout_.kv_heads_in_hbm(mapping, layer);
      first = std::min(before, after);
      end = std::max(before, after);
    }
    for (int head = first; head < end; ++head) {
      note(layout_.kv(layer, head, column), was ? sides_of_kv(mapping_, layer, head) : Sides{},
           is ? sides_of_kv(mapping, layer, head) : Sides{});
    }
  }
}

void Memory::note(Pages::Page page, Sides before, Sides after) {
  const bool was_somewhere = before.hbm || before.lpddr;
  const auto note_side = [&](Where side, bool was, bool is, bool was_there, bool is_there) {
    if (is && !was) {
      auto& list = !was_somewhere           ? changes_.allocated
                   : was_there && !is_there ? changes_.moved
                                            : changes_.copied;
      list[at(side)].push_back(page);
    }
    const bool moves = is_there && !was_there;  // then the move gives this side's frame back
    if (was && !is && !moves) changes_.freed[at(side)].push_back(page);
  };
  note_side(Where::kHbm, before.hbm, after.hbm, before.lpddr, after.lpddr);
  note_side(Where::kLpddr, before.lpddr, after.lpddr, before.hbm, after.hbm);
}

// Moves never need a frame that is not free: they leave the number of free frames of both sides together as
// it is, and that is at least one, for what comes after them needs the others. If it is in HBM the next page
// goes there, and otherwise the other way. Once all pages have moved one way, those that are left to move the
// other way fit, because the final mapping fits.
Memory::Traffic Memory::carry_out() {
  Traffic traffic;
  for (const Where side : {Where::kHbm, Where::kLpddr}) {
    for (const Pages::Page page : changes_.freed[at(side)]) pages_.unmap(side, page);
    traffic.freed += std::ssize(changes_.freed[at(side)]);
  }
  const std::vector<Pages::Page>& to_hbm = changes_.moved[at(Where::kHbm)];
  const std::vector<Pages::Page>& to_lpddr = changes_.moved[at(Where::kLpddr)];
  std::size_t filled = 0;
  std::size_t evicted = 0;
  while (filled < to_hbm.size() || evicted < to_lpddr.size()) {
    if (filled < to_hbm.size() && pages_.free(Where::kHbm) > 0) {
      pages_.move(to_hbm[filled++], Where::kHbm);
    } else {
      pages_.move(to_lpddr[evicted++], Where::kLpddr);
    }
  }
  for (const Where side : {Where::kHbm, Where::kLpddr}) {
    for (const Pages::Page page : changes_.copied[at(side)]) pages_.map(side, page);
    for (const Pages::Page page : changes_.allocated[at(side)]) pages_.map(side, page);
    traffic.allocated += std::ssize(changes_.allocated[at(side)]);
  }
  traffic.to_hbm = std::ssize(to_hbm) + std::ssize(changes_.copied[at(Where::kHbm)]);
  traffic.to_lpddr = std::ssize(to_lpddr) + std::ssize(changes_.copied[at(Where::kLpddr)]);
  return traffic;
}

void Memory::check_weights(Pages::Page begin, std::int64_t pages, const Split& split) const {
  for (std::int64_t at = 0; at < pages; ++at) {
    check_page(begin + static_cast<Pages::Page>(at), mapping_ ? sides_of(split, at) : Sides{});
  }
}

void Memory::check_page(Pages::Page page, Sides expected) const {
  if (Sides{pages_.mapped(Where::kHbm, page), pages_.mapped(Where::kLpddr, page)} == expected) return;
  throw std::logic_error("page " + std::to_string(page) + " is not where the mapping says");
}

}  // namespace lamina::h2m2
