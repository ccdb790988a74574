/* Memory by rank, every buffer of it, and the arena over the time of a step. */

const REGION_COLOR = { "weights": 0, "gradients": 1, "optimizer state": 3, "saved activations": 2, "scratch": 4,
	"communication": 5, "kept buffers": 6, "weights in 8 bits": 7, "constants": 7, "input": 8, "statistics": 9 };
function region_color(name) {
	return REGION_COLOR[name] === undefined ? 9 : REGION_COLOR[name];
}

/* Of all layers on the stage, and of all microbatches in flight of what is saved. */
function buffer_rows(p, st, region) {
	const all = [...st.buffers.values()].filter((b) => b.region === region);
	all.sort((a, b) => a.off - b.off || (a.name < b.name ? -1 : 1));
	return all.map((b) => {
		const t = p.tensors.get(b.name);
		return [b.name, t ? `${t.role} [${t.dims.join(", ")}]` : "", commas(b.off), commas(b.bytes), t && t.layers ? b.layers : "",
			commas(b.stride), t ? t.hf : ""];
	});
}

function memory(p, box) {
	const most = Math.max(p.memory_gib * 2 ** 30, ...p.stages.map((st) => st.arena));
	const order = p.regions.filter((r) => p.stages.some((st) => st.regions[r].bytes));
	const list = el("div"), shown = { stage: 0, region: "" };
	function show(stage, region) {
		const st = p.stages[stage];
		Object.assign(shown, { stage, region });
		list.replaceChildren(table(`Buffers of ${region}${p.stages.length > 1 ? ` on stage ${stage}` : ""}: ${
			bytes(st.regions[region].bytes)}${region === "saved activations" && st.slots > 1
			? `, for ${st.slots} microbatches in flight` : ""}${region === "scratch"
			? ", which buffers share that are not in use together" : ""}`,
			[["buffer", ""], ["numbers", ""], ["offset", "n"], ["bytes of a layer", "n"], ["layers", "n"], ["stride", "n"],
				["checkpoint name", ""]], buffer_rows(p, st, region)));
		bars.querySelectorAll("button").forEach((b) => b.setAttribute("aria-pressed",
			String(b.dataset.stage === String(stage) && b.dataset.region === region)));
	}
	const bars = el("div", { class: "memory" }, p.stages.map((st, s) =>
		el("div", { class: "memrow", role: "group", "aria-label": `Memory of a rank of stage ${s}` },
			el("span", { class: "dim" }, p.stages.length > 1 ? `stage ${s}` : "a rank"),
			el("div", { class: "stack" }, order.filter((r) => st.regions[r].bytes).map((r) =>
				with_tip(el("button", { type: "button", "data-stage": s, "data-region": r,
					style: `width:${100 * st.regions[r].bytes / most}%;background:var(--c${region_color(r)})`,
					"aria-label": `${r}: ${bytes(st.regions[r].bytes)}`, click: () => show(s, r) }),
					() => `${r}: ${bytes(st.regions[r].bytes)}\n${percent(st.regions[r].bytes / st.arena)} of the rank's ${bytes(st.arena)}`))),
			el("span", { class: "mono" }, bytes(st.arena)))));
	box.append(
		el("figure", null, bars, legend(order.map((r) => [`var(--c${region_color(r)})`, r])),
			el("figcaption", null, p.memory_gib > 0 ? `The whole width is the device's ${p.memory_gib} GiB. ` : "",
				"All of it is one allocation, made at start. A part of the bar lists its buffers.")),
		list);
	show(0, order.reduce((most, r) => p.stages[0].regions[r].bytes > p.stages[0].regions[most].bytes ? r : most));
	box.append(el("h3", null, "The arena over a step"));
	const map = el("div");
	box.append(map);
	when_near(map, () => arena(p, map, box));
	box.plan_view = { ...box.plan_view, memory: { show, shown } };
}

/*
 * What lies where, when: rectangles of bytes by launches of one microbatch's passes over the stage's chunks, and of the
 * update. What is kept from step to step is one for each tensor and layer.
 */
function arena_items(p, st) {
	const chunks = [...st.chunks].sort((a, b) => a.place - b.place), visit = [], items = [], kept = new Map();
	for (const c of chunks)
		visit.push(...visits(p, c, "forward").map((v) => ({ ...v, chunk: c })));
	for (let ph = 1; ph < p.costs.length; ph++)
		for (const c of [...chunks].reverse())
			visit.push(...visits(p, c, p.phases[ph]).map((v) => ({ ...v, chunk: c })));
	visit.push({ segment: p.segments[p.ends.update].name, phase: "forward", layer: 0, chunk: null });
	let x = 0;
	for (const v of visit) {
		const here = new Map();
		v.x = x;
		for (const l of program(st, v)) {
			for (const name of [...l.in, ...l.out.map((o) => o.name)]) {
				const b = st.buffers.get(name);
				if (!b || !v.chunk || !["saved activations", "scratch"].includes(b.region))
					continue;
				const e = extent(p, st, name, v.layer, v.chunk), key = `${e[0]} ${e[1]}`;
				const layer = p.tensors.get(name).layers || b.kind ? ` of layer ${v.layer}` : "";
				/* scratch is another buffer where its bytes are written anew, and the same where an op works in place */
				const map = b.region !== "scratch" || b.kind === 2 ? kept : here, old = map.get(key);
				const same = old && (map === kept || old.x1 === x + 1 || [...old.names].some((n) => n === name + layer));
				const item = same ? old : { x0: x, x1: x + 1, y0: e[0], y1: e[1], region: b.region, names: new Set(), odd: v.layer % 2, from: l };
				if (!same) {
					map.set(key, item);
					items.push(item);
				}
				item.names.add(name + layer);
				item.x1 = x + 1;
				item.to = l;
			}
			if (l.ws_bytes && v.chunk)
				items.push({ x0: x, x1: x + 1, y0: l.ws, y1: l.ws + l.ws_bytes, region: "scratch",
					names: new Set([`workspace of ${l.kernel}, layer ${v.layer}`]), odd: v.layer % 2, from: l, to: l });
			x++;
		}
		v.end = x;
	}
	return { items, visit, end: x };
}

function arena(p, box, section) {
	const left = 74, bottom = 20, height = 420;
	let st, map, view;
	const y_of = (off, v) => (off / st.arena - v.y0) / (v.y1 - v.y0) * (height - bottom);
	const x_of = (at, v) => left + (at / map.end - v.x0) / (v.x1 - v.x0) * (v.width - left);
	function set(stage) {
		st = p.stages[stage];
		map = arena_items(p, st);
		if (view)
			whole();
	}
	/* a step keeps most bytes as they are: what moves is shown first */
	function moving() {
		const a = st.regions["saved activations"], b = st.regions.scratch;
		view.show(0, 1, a.off / st.arena, Math.max((b.off + b.bytes) / st.arena, a.off / st.arena + 1e-6));
	}
	function whole() {
		view.show(0, 1, 0, 1);
	}
	function draw(c, v) {
		const resident = p.regions.filter((r) => st.regions[r].bytes);
		c.textAlign = "left";
		for (const r of resident) {
			const g = st.regions[r], y0 = Math.max(0, y_of(g.off, v)), y1 = Math.min(height - bottom, y_of(g.off + g.bytes, v));
			if (y1 <= y0)
				continue;
			const moves = r === "saved activations" || r === "scratch";
			c.globalAlpha = moves ? 0.14 : 0.8;
			c.fillStyle = series(region_color(r));
			c.fillRect(left, y0, v.width - left, Math.max(1, y1 - y0));
			c.globalAlpha = 1;
		}
		const back = color("panel");
		for (const i of map.items) {
			const x0 = Math.max(left, x_of(i.x0, v)), x1 = Math.min(v.width, x_of(i.x1, v));
			const y0 = Math.max(0, y_of(i.y0, v)), y1 = Math.min(height - bottom, y_of(i.y1, v));
			if (x1 < x0 || y1 < y0)
				continue;
			c.globalAlpha = v.item && v.item.item === i ? 1 : i.odd ? 0.85 : 0.65;
			c.fillStyle = series(region_color(i.region));
			c.fillRect(x0, y0, Math.max(0.6, x1 - x0), Math.max(0.6, y1 - y0));
			if (x1 - x0 > 4 && y1 - y0 > 4) {
				c.globalAlpha = 1;
				c.strokeStyle = back;
				c.lineWidth = 0.5;
				c.strokeRect(x0, y0, x1 - x0, y1 - y0);
				if (y1 - y0 > 13 && x1 - x0 > 40) {
					c.fillStyle = back;
					c.fillText(fit_text(c, [...i.names][0], x1 - x0 - 8), x0 + 4, (y0 + y1) / 2);
				}
			}
		}
		c.globalAlpha = 1;
		for (const r of resident) {
			const g = st.regions[r], y0 = Math.max(0, y_of(g.off, v)), y1 = Math.min(height - bottom, y_of(g.off + g.bytes, v));
			if (y1 - y0 > 15 && !["saved activations", "scratch"].includes(r)) {
				c.fillStyle = back;
				c.fillText(`${r}, the whole step`, left + 8, (y0 + y1) / 2);
			}
		}
		c.fillStyle = color("dim");
		c.textAlign = "right";
		for (const t of ticks(st.arena * v.y0, st.arena * v.y1, 9))
			c.fillText(bytes(t).replace(".00", ""), left - 6, Math.max(8, Math.min(height - bottom - 6, y_of(t, v))));
		c.textAlign = "left";
		let last = -1e9;
		for (const x of map.visit) {
			const at = x_of(x.x, v);
			const text = `${x.segment}${p.segment.get(x.segment).layers.length ? ` ${x.layer}` : ""} ${x.phase[0].toUpperCase()}`;
			if (at < left || at > v.width || at - last < 62)
				continue;
			last = at;
			c.fillText(fit_text(c, text, Math.min(60, v.width - at)), at, height - 9);
			c.fillRect(at, height - bottom, 1, 5);
		}
	}
	function hit(x, y, v) {
		if (x < left || y > height - bottom)
			return null;
		const at = (v.x0 + (x - left) / (v.width - left) * (v.x1 - v.x0)) * map.end;
		const off = (v.y0 + y / (height - bottom) * (v.y1 - v.y0)) * st.arena;
		for (let i = map.items.length - 1; i >= 0; i--) {
			const m = map.items[i];
			if (at >= m.x0 && at < m.x1 && off >= m.y0 && off < m.y1)
				return { key: i, item: m, text: `${[...m.names].join(", ")}\n${m.region}: bytes ${commas(m.y0)} .. ${commas(m.y1)} (${bytes(m.y1 - m.y0)})\nfrom ${m.from.op} to ${m.to.op}, ${
					m.x1 - m.x0} launches` };
		}
		const r = p.regions.find((n) => off >= st.regions[n].off && off < st.regions[n].off + st.regions[n].bytes);
		const moves = r === "saved activations" || r === "scratch";
		return r ? { key: r, text: `${r}: ${bytes(st.regions[r].bytes)}\n${moves ? "free here now, or another microbatch's" : "kept the whole step"}` } : null;
	}
	set(0);
	view = figure({ label: "Arena: which buffer lives where, when. Time goes to the right, addresses go down", moves: "xy",
		left, height, draw, hit, least: 1e-6 });
	box.append(
		el("div", { class: "bar" }, p.stages.length > 1
			? choice("stage", p.stages.map((s, i) => [i, `${i}: ${s.layers}`]), 0, (v) => set(Number(v))) : "",
			el("button", { type: "button", click: whole }, "Whole arena"),
			el("button", { type: "button", click: moving }, "Activations and scratch")),
		el("figure", null, view.controls, view.canvas, view.status, el("figcaption", null,
			"Columns are the launches of one microbatch's passes and of the update, rows are addresses. What the backward pass reads is ",
			"saved from its layer's forward pass on; scratch is packed by lifetime, launch by launch.")),
		table_view("what lives when", [["buffer", ""], ["region", ""], ["first byte", "n"], ["bytes", "n"],
			["from launch", "n"], ["to launch", "n"]], () => map.items.map((i) => [[...i.names].join(", "), i.region,
			commas(i.y0), commas(i.y1 - i.y0), i.x0, i.x1 - 1])));
	moving();
	section.plan_view.arena = { view, map: () => map, stage: () => st, place: (i) => [
		x_of((i.x0 + i.x1) / 2, view), y_of((i.y0 + i.y1) / 2, view)] };
}
