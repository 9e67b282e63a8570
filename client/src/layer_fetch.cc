#include "client/src/layer_fetch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/src/errors.h"
#include "client/src/fetch.h"

namespace kvtier::client {

Result<std::unique_ptr<OwnedView>> OwnedView::Make(const kvtier_view* view, const ModelSpec& spec,
                                                   LayerRange layers, uint64_t tokens) {
  // Its counts are believed once they have been checked; then the copies are, since a caller's arrays may
  // change meanwhile.
  KVTIER_TRY(View::CheckDestination(view, spec, layers, tokens).status());
  kvtier_view copy = *view;
  std::unique_ptr<OwnedView> owned(new OwnedView());
  owned->bases_.assign(copy.bases, copy.bases + copy.n_bases);
  copy.bases = owned->bases_.data();
  if (copy.v_bases != nullptr) {
    owned->v_bases_.assign(copy.v_bases, copy.v_bases + copy.n_bases);
    copy.v_bases = owned->v_bases_.data();
  }
  if (copy.page_table != nullptr) {
    owned->pages_.assign(copy.page_table, copy.page_table + copy.n_pages);
    copy.page_table = owned->pages_.data();
  }
  KVTIER_ASSIGN(const View checked, View::CheckDestination(&copy, spec, layers, tokens));
  owned->view_ = checked;
  return owned;
}

Result<std::shared_ptr<LayerFetch>> LayerFetch::Make(std::shared_ptr<Lease> lease, size_t first, size_t count,
                                                     LayerRange layers, const kvtier_view* destination) {
  const uint64_t start = lease->blocks[first].info.position;
  const kvtier_block_info& last = lease->blocks[first + count - 1].info;
  KVTIER_ASSIGN(std::unique_ptr<OwnedView> view, OwnedView::Make(destination, lease->model->spec, layers,
                                                                 last.position + last.tokens - start));
  const Stores stores = StoresFor(*lease, first, count, layers.count, view->get().dtype());
  std::shared_ptr<LayerFetch> fetch(new LayerFetch(lease, layers, std::move(view), stores));
  fetch->to_do_.assign(layers.count, count);
  fetch->blocks_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    Block& block = fetch->blocks_[i];
    const kvtier_block_info& info = lease->blocks[first + i].info;
    block.index = first + i;
    block.first_token = static_cast<uint32_t>(info.position - start);
    block.precision = info.precision;
    Result<LeasedImage> opened = OpenBlock(*lease, first + i);
    block.failure = opened.status().code();
    block.failed_layer = layers.first;
    lease->NoteIfDamaged(block.index, opened.status());
    if (opened.ok()) block.opened = std::move(*opened);
  }
  return fetch;
}

bool LayerFetch::DoPiece() {
  return DoPieceUpTo(last_layer());
}

bool LayerFetch::DoPieceUpTo(uint16_t last) {
  std::unique_lock lock(mutex_);
  if (cancelled_ || next_ >= blocks_.size() * (last - layers_.first + size_t{1})) return false;
  const size_t piece = next_++;
  Block& block = blocks_[piece % blocks_.size()];
  const auto layer = static_cast<uint16_t>(layers_.first + piece / blocks_.size());
  ++under_way_;
  const bool failed_before = block.failure != Code::kOk;
  lock.unlock();
  const Status status = failed_before ? Status::Ok() : Decode(block, layer);
  lock.lock();
  Finish(block, layer, status);
  return true;
}

Status LayerFetch::Decode(const Block& block, uint16_t layer) const {
  KVTIER_TRY(lease_->CheckAndRenew(SteadyClock().Now()));
  KvLayerView out = destination_->get().Layer(layer, block.first_token);
  out.stores = stores_;
  const Status decoded = DecodeLayer(block.opened.block->image(), layer, out, block.opened.guard());
  lease_->NoteIfDamaged(block.index, decoded);
  return decoded;
}

void LayerFetch::Finish(Block& block, uint16_t layer, const Status& status) {
  --under_way_;
  if (!status.ok() && (block.failure == Code::kOk || layer < block.failed_layer)) {
    block.failure = status.code();
    block.failed_layer = layer;
  }
  --to_do_[layer - layers_.first];
  Advance();
}

void LayerFetch::Advance() {
  while (layers_done_ < layers_.count && to_do_[layers_done_] == 0) ++layers_done_;
  if (ended() && on_end_) std::exchange(on_end_, nullptr)();
  // To wake somebody costs more than a small layer: nobody is woken in vain.
  if (!ended() && !cancelled_ && layers_done_ < least_wanted_) return;
  least_wanted_ = kNoneWanted;
  changed_.notify_all();
}

void LayerFetch::Cancel() {
  std::unique_lock lock(mutex_);
  cancelled_ = true;
  Advance();
  // Bounded by the decoding of a layer, which waits for nobody.
  changed_.wait(lock, [this] { return under_way_ == 0; });
}

void LayerFetch::OnEnd(std::function<void()> ended_callback) {
  std::lock_guard lock(mutex_);
  if (ended()) return ended_callback();
  on_end_ = std::move(ended_callback);
}

bool LayerFetch::WaitLayer(uint16_t layer, TimePoint deadline) {
  // A caller that only slept would leave its CPU idle, and be woken for what it could have done by then.
  while (SteadyClock().Now() < deadline && DoPieceUpTo(layer)) {
  }
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] {
    if (layers_.first + layers_done_ > layer || ended()) return true;
    least_wanted_ = std::min(least_wanted_, uint32_t{layer} - layers_.first + 1);
    return false;
  });
}

void LayerFetch::Results(uint16_t layer, std::span<kvtier_block_result> results) const {
  std::lock_guard lock(mutex_);
  const auto done = static_cast<uint16_t>(layer - layers_.first + 1);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    results[i] = {};
    if (block.failure != Code::kOk && block.failed_layer <= layer) {
      results[i].code = ToC(block.failure);
    } else if (layers_done_ < done) {
      results[i].code = ToC(cancelled_ ? Code::kCancelled : Code::kDeadlineExceeded);
    } else {
      const DecodedErrors errors =
          ErrorsOf(block.opened.block->image(), {.first = layers_.first, .count = done});
      results[i].precision = block.precision;
      results[i].k_error = errors.k_error;
      results[i].v_error = errors.v_error;
    }
  }
}

}  // namespace kvtier::client
