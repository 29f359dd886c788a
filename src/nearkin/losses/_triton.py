"""The programs of the fused kernels, in Triton's language; :mod:`nearkin.losses._kernels` launches them."""

import triton
import triton.language as tl


@triton.jit
def units_and_lengths_kernel(embeddings, vectors, unit, lengths, rows, dim, floor, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < dim
    is_embedding = row < rows
    source = tl.where(is_embedding, embeddings + row * dim, vectors + (row - rows) * dim)
    values = tl.load(source + columns, mask=inside, other=0.0)
    # Over the largest entry, so that squares neither overflow nor vanish.
    largest = tl.max(tl.abs(values), axis=0)
    safe = tl.where(largest > 0, largest, 1.0)
    scaled = values / safe
    length = tl.maximum(tl.sqrt(tl.sum(scaled * scaled, axis=0)) * safe, floor)
    tl.store(lengths + row, length)
    if is_embedding:
        tl.store(unit + row * dim + columns, values / length, mask=inside)


@triton.jit
def remove_radial_kernel(
    for_embeddings, for_vectors, unit, vectors, norms, lengths, factor, rows, dim, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < dim
    times = tl.load(factor)
    if row < rows:
        place = row * dim + columns
        gradient = tl.load(for_embeddings + place, mask=inside, other=0.0)
        direction = tl.load(unit + place, mask=inside, other=0.0)
        radial = tl.sum(gradient * direction, axis=0)
        result = (gradient - direction * radial) * (times / tl.load(norms + row))
        tl.store(for_embeddings + place, result, mask=inside)
    else:
        row -= rows
        place = row * dim + columns
        gradient = tl.load(for_vectors + place, mask=inside, other=0.0)
        direction = tl.load(vectors + place, mask=inside, other=0.0) / tl.load(lengths + row)
        radial = tl.sum(gradient * direction, axis=0)
        tl.store(for_vectors + place, (gradient - direction * radial) * times, mask=inside)


@triton.jit
def proxy_spread_kernel(
    vectors, lengths, value, matrices, dim, weight, floor, K: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr
):
    c = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, PADDED)
    products = tl.zeros([PADDED, PADDED], tl.float32)
    for start in range(0, dim, BLOCK):
        d = start + tl.arange(0, BLOCK)
        there = (k < K)[:, None] & (d < dim)[None, :]
        v = tl.load(vectors + (c * K + k)[:, None] * dim + d[None, :], mask=there, other=0.0)
        products += tl.dot(v, tl.trans(v), input_precision="tf32x3")
    length = tl.load(lengths + c * K + k, mask=k < K, other=1.0)
    pair = length[:, None] * length[None, :]
    cosine = products / pair
    different = (k[:, None] != k[None, :]) & (k < K)[:, None] & (k < K)[None, :]
    squared = 2.0 - 2.0 * cosine
    apart = different & (squared > floor)
    distance = tl.where(apart, tl.sqrt(tl.where(apart, squared, 0.0)), 0.0)
    tl.store(value + c, tl.sum(tl.sum(distance, axis=1), axis=0) * (weight / 2))
    pull = tl.where(distance > 0, -weight / tl.where(distance > 0, distance, 1.0), 0.0)
    along = tl.sum(cosine * pull, axis=1) / length / length
    matrix = pull / pair - tl.where(k[:, None] == k[None, :], along[:, None], 0.0)
    place = (c * K + k)[:, None] * K + k[None, :]
    tl.store(matrices + place, matrix, mask=(k < K)[:, None] & (k < K)[None, :])


@triton.jit
def cross_entropy_kernel(
    similarities,
    labels,
    lengths,
    value,
    gradient,
    classes,
    scale,
    step,
    margin,
    cos_m,
    sin_m,
    ARC: tl.constexpr,
    DIVIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    own = tl.load(similarities + row * classes + label)
    if DIVIDE:
        own_length = tl.load(lengths + label)
        own = own / own_length
    if ARC:
        own = tl.minimum(tl.maximum(own, -1.0), 1.0)
        sine = tl.sqrt(1.0 - own * own)
        before_turn = own >= -cos_m
        target = tl.where(before_turn, cos_m * own - sin_m * sine, own - margin * sin_m)
        cotangent = tl.where(sine > 0, own / tl.where(sine > 0, sine, 1.0), 0.0)
        target_gradient = tl.where(before_turn, cos_m + sin_m * cotangent, 1.0)
    else:
        target = own - margin
        target_gradient = 1.0
    target = target * scale
    top, total = target, 1.0
    for start in range(0, classes, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = (columns < classes) & (columns != label)
        logits = tl.load(similarities + row * classes + columns, mask=inside, other=float("-inf")) * scale
        if DIVIDE:
            logits = logits / tl.load(lengths + columns, mask=inside, other=1.0)
        higher = tl.maximum(top, tl.max(logits, axis=0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(logits - higher), axis=0)
        top = higher
    log_total = tl.log(total)
    tl.store(value + row, top - target + log_total)
    for start in range(0, classes, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < classes
        logits = tl.load(similarities + row * classes + columns, mask=inside, other=0.0) * scale
        if DIVIDE:
            length = tl.load(lengths + columns, mask=inside, other=1.0)
            share = tl.exp(logits / length - top - log_total) * step / length
        else:
            share = tl.exp(logits - top - log_total) * step
        tl.store(gradient + row * classes + columns, share, mask=inside & (columns != label))
    own_share = (tl.exp(target - top - log_total) - 1.0) * step * target_gradient
    if DIVIDE:
        own_share = own_share / own_length
    tl.store(gradient + row * classes + label, own_share)


@triton.jit
def anchor_kernel(
    similarities,
    labels,
    positive,
    negative,
    pull_norms,
    push_norms,
    value,
    gradient,
    rows,
    classes,
    alpha,
    margin,
    pull_norm,
    push_norm,
    READ_PULL_NORM: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    columns = program * BLOCK + tl.arange(0, BLOCK)
    inside = columns < classes
    if READ_PULL_NORM:
        pull_norm = tl.load(pull_norms)
    if WEIGHTED:
        push_norm = tl.load(push_norms)
    # The 1 in log(1 + Σ): an exponent of 0 that is there from the start.
    pull_top = tl.zeros([BLOCK], tl.float32)
    push_top = tl.zeros([BLOCK], tl.float32)
    pull_total = tl.full([BLOCK], 1.0, tl.float32)
    push_total = tl.full([BLOCK], 1.0, tl.float32)
    for start in range(0, rows, ROWS):
        r = start + tl.arange(0, ROWS)
        label = tl.load(labels + r, mask=r < rows, other=-1)
        there = (r < rows)[:, None] & inside[None, :]
        place = r.to(tl.int64)[:, None] * classes + columns[None, :]
        s = tl.load(similarities + place, mask=there, other=0.0)
        own = label[:, None] == columns[None, :]
        pull = alpha * (margin - s)
        push = alpha * (margin + s)
        if WEIGHTED:
            pull *= tl.load(positive + r, mask=r < rows, other=0.0)[:, None]
            push *= tl.load(negative + place, mask=there, other=0.0)
        pull = tl.where(there & own, pull, float("-inf"))
        push = tl.where(there & (own == 0), push, float("-inf"))
        higher = tl.maximum(pull_top, tl.max(pull, axis=0))
        pull_total = pull_total * tl.exp(pull_top - higher) + tl.sum(tl.exp(pull - higher[None, :]), axis=0)
        pull_top = higher
        higher = tl.maximum(push_top, tl.max(push, axis=0))
        push_total = push_total * tl.exp(push_top - higher) + tl.sum(tl.exp(push - higher[None, :]), axis=0)
        push_top = higher
    each = (tl.log(pull_total) + pull_top) / pull_norm + (tl.log(push_total) + push_top) / push_norm
    tl.store(value + program, tl.sum(tl.where(inside, each, 0.0), axis=0))
    pull_step = -alpha / pull_norm / pull_total
    push_step = alpha / push_norm / push_total
    for start in range(0, rows, ROWS):
        r = start + tl.arange(0, ROWS)
        label = tl.load(labels + r, mask=r < rows, other=-1)
        there = (r < rows)[:, None] & inside[None, :]
        place = r.to(tl.int64)[:, None] * classes + columns[None, :]
        s = tl.load(similarities + place, mask=there, other=0.0)
        own = label[:, None] == columns[None, :]
        exponent = tl.where(own, alpha * (margin - s), alpha * (margin + s))
        step = tl.where(own, pull_step[None, :], push_step[None, :])
        if WEIGHTED:
            weight = tl.where(
                own,
                tl.load(positive + r, mask=r < rows, other=0.0)[:, None],
                tl.load(negative + place, mask=there, other=0.0),
            )
            exponent *= weight
            step *= weight
        exponent -= tl.where(own, pull_top[None, :], push_top[None, :])
        tl.store(gradient + place, tl.exp(tl.minimum(exponent, 0.0)) * step, mask=there)


@triton.jit
def _shares(
    products,
    lengths,
    base,
    classes,
    inverse_gamma,
    K: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    """Similarities of a block of classes to one sample, and what share each proxy has in its class's."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, PADDED)
    there = (c < classes)[:, None] & (k < K)[None, :]
    place = c.to(tl.int64)[:, None] * K + k[None, :]
    length = tl.load(lengths + place, mask=there, other=1.0)
    s = tl.load(products + base * K + place, mask=there, other=0.0) / length
    in_class = (k < K)[None, :]
    if KIND == 2:
        share = tl.where(in_class, 1.0 / K, 0.0) + 0.0 * s
    else:
        exponent = tl.where(in_class, s, float("-inf"))
        top = tl.max(exponent, axis=1)
        if KIND == 1:
            nearest = tl.argmax(exponent, axis=1)
            share = tl.where(k[None, :] == nearest[:, None], 1.0, 0.0)
        else:
            share = tl.exp((exponent - top[:, None]) * inverse_gamma)
            share = share / tl.sum(share, axis=1)[:, None]
    return s, share, length, place, there


@triton.jit
def class_similarity_kernel(
    products,
    lengths,
    combined,
    classes,
    inverse_gamma,
    K: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    base = tl.program_id(1).to(tl.int64) * classes
    s, share, _, _, _ = _shares(products, lengths, base, classes, inverse_gamma, K, PADDED, BLOCK, KIND)
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(combined + base + c, tl.sum(s * share, axis=1), mask=c < classes)


@triton.jit
def gradient_by_proxy_kernel(
    products,
    lengths,
    combined,
    gradient,
    classes,
    inverse_gamma,
    K: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    base = tl.program_id(1).to(tl.int64) * classes
    s, share, length, place, there = _shares(products, lengths, base, classes, inverse_gamma, K, PADDED, BLOCK, KIND)
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    upstream = tl.load(gradient + base + c, mask=c < classes, other=0.0)
    if KIND == 0:
        # ∂S/∂s_k = a_k (1 + (s_k − S)/γ) with a_k the softmax.
        whole = tl.load(combined + base + c, mask=c < classes, other=0.0)
        share = share * (1.0 + (s - whole[:, None]) * inverse_gamma)
    tl.store(products + base * K + place, share * upstream[:, None] / length, mask=there)
