/* The step's time line: all passes of all stages, gaps with their reasons, one microbatch followed through every rank. */

function pipeline(p, box) {
	const known = p.step > 0, chunks = p.stages[0].chunks.length, left = 64;
	const row = p.stages.length > 24 ? 14 : 26, axis = 24;
	let run, followed = p.stages.length > 1 ? Math.min(p.microbatches - 1, 1) : -1, view;
	const fill = { forward: "c0", backward: "c1", weights: "c2" };

	const x_of = (t, v) => left + (t / run.end - v.x0) / (v.x1 - v.x0) * (v.width - left);
	const time = (t) => run.timed ? seconds(t) : `${Number(t.toPrecision(6))} units`;
	/* The first pass of a stage that ends after a time. */
	function first_after(s, t) {
		const start = run.stages[s].start;
		let lo = 0, hi = run.stages[s].n;
		while (lo < hi) {
			const mid = (lo + hi) >> 1;
			if (start[mid] + run.length(s, mid) < t)
				lo = mid + 1;
			else
				hi = mid;
		}
		return lo;
	}
	function describe(s, i) {
		const [ph, k, m] = pass_of(run.stages[s].list[i], chunks), start = run.stages[s].start[i], took = run.length(s, i);
		const rows = ph < 2 ? run.rows[s] : 0;
		return `stage ${s}: ${p.phases[ph]} of microbatch ${m}${chunks > 1 ? `, chunk ${k}` : ""}\nfrom ${time(start)}, takes ${
			time(took)}${rows > 0 ? `\nof that ${time(rows)} exposed: expert rows on the link` : ""}`;
	}
	function reason(s, i) {
		const [ph, k, m] = pass_of(run.stages[s].list[i], chunks), w = run.stages[s].wait[i], sent = run.stages[s].sent[i];
		const place = p.stages[s].chunks[k].place + (ph === 0 ? -1 : 1);
		const from = p.stages.findIndex((st) => st.chunks.some((c) => c.place === place));
		const what = ph === 0 ? "activations" : "gradients";
		return `${sent >= w && sent > 0 ? "exposed communication" : "bubble"}: stage ${s} waits ${time(w)} for ${what} of microbatch ${
			m} from stage ${from}${sent > 0 ? `\nof that ${time(sent)} exposed: they are on the link` : ""}`;
	}
	function hit(x, y, v) {
		const s = Math.floor((y - axis) / row), t = (v.x0 + (x - left) / (v.width - left) * (v.x1 - v.x0)) * run.end;
		if (s < 0 || s >= p.stages.length || x < left)
			return null;
		const line = run.stages[s], i = first_after(s, t);
		const tail = line.tail.find((b) => t >= b.start && t < b.end);
		if (tail)
			return { key: `${s} ${tail.name}`, text: `stage ${s}: ${tail.name}, ${time(tail.end - tail.start)}${
				tail.name === "update" ? "" : "\nexposed communication: nothing is computed meanwhile"}` };
		if (i >= line.n)
			return { key: `${s} end`, text: `bubble: stage ${s} has done its passes, and waits for the others` };
		if (line.start[i] > t)
			return { key: `${s} ${i} gap`, text: reason(s, i) };
		return { key: `${s} ${i}`, text: describe(s, i), microbatch: pass_of(line.list[i], chunks)[2] };
	}
	function draw(c, v) {
		const panel = color("panel"), dim = color("dim"), text = color("text"), gap = color("soft");
		const span = (v.x1 - v.x0) * run.end, from = v.x0 * run.end, scale = (v.width - left) / span;
		const way = [];
		c.textAlign = "center";
		c.fillStyle = dim;
		for (const t of ticks(from, from + span, Math.max(2, (v.width - left) / 110))) {
			c.fillText(time(t), Math.min(v.width - 30, Math.max(left + 12, x_of(t, v))), 9);
			c.fillRect(x_of(t, v), 17, 1, 5);
		}
		for (let s = 0; s < p.stages.length; s++) {
			const y = axis + s * row, h = row - 3, line = run.stages[s];
			c.fillStyle = gap;
			c.fillRect(left, y, v.width - left, h);
			let drawn = -1;
			for (let i = first_after(s, from); i < line.n && line.start[i] < from + span; i++) {
				const [ph, k, m] = pass_of(line.list[i], chunks), took = run.length(s, i);
				const x = left + (line.start[i] - from) * scale, w = took * scale, px = Math.floor(x + w);
				if (m === followed)
					way.push([x + w / 2, y + h / 2, ph, x, y, Math.max(w, 1.5), h, k]);
				if (w < 1 && px === drawn)
					continue;
				drawn = px;
				c.fillStyle = color(fill[p.phases[ph]]);
				c.globalAlpha = followed >= 0 ? 0.32 : k % 2 ? 0.75 : 1;
				const x0 = Math.max(x, left), wide = Math.max(x + w - x0 - (w > 4 ? 1 : 0), 0.7);
				c.fillRect(x0, y, wide, h);
				c.globalAlpha = 1;
				if (run.rows[s] > 0 && w > 8 && ph < 2) {
					c.fillStyle = color("c5");
					c.fillRect(x0, y + h - 4, Math.min(wide, run.rows[s] * scale), 4);
				}
				if (w > 22 && h > 12) {
					c.fillStyle = followed >= 0 && m !== followed ? dim : panel;
					c.font = "11px system-ui, sans-serif";
					c.fillText(m, (Math.max(x, left) + Math.min(x + w, v.width)) / 2, y + h / 2 + 0.5);
				}
			}
			for (const b of line.tail) {
				const x = Math.max(left, left + (b.start - from) * scale), end = left + (b.end - from) * scale;
				c.fillStyle = color(b.name === "update" ? "c3" : "c5");
				if (end > left)
					c.fillRect(x, y, Math.max(0.7, end - x - 0.5), h);
			}
		}
		way.sort((a, b) => a[0] - b[0]);
		c.lineWidth = 1.5;
		c.strokeStyle = text;
		c.beginPath();
		way.forEach(([x, y], i) => i ? c.lineTo(x, y) : c.moveTo(x, y));
		c.globalAlpha = 0.7;
		if (way.length > 1)
			c.stroke();
		c.globalAlpha = 1;
		for (const [, , ph, x, y, w, h] of way) {
			const x0 = Math.max(x, left);
			if (x + w < left)
				continue;
			c.fillStyle = color(fill[p.phases[ph]]);
			c.fillRect(x0, y, x + w - x0, h);
			c.strokeStyle = text;
			c.strokeRect(x0, y, x + w - x0, h);
			if (w > 22) {
				c.fillStyle = panel;
				c.fillText(followed, x + w / 2, y + h / 2 + 0.5);
			}
		}
		c.fillStyle = color("panel");
		c.fillRect(0, axis, left - 2, v.height);
		c.fillStyle = dim;
		c.textAlign = "left";
		for (let s = 0; s < p.stages.length; s++)
			c.fillText(p.stages.length > 1 ? `stage ${s}` : "rank", 0, axis + s * row + row / 2 - 1);
	}
	const number = el("input", { type: "number", min: "-1", max: String(p.microbatches - 1), value: String(followed),
		input: () => follow(Number(number.value)) });
	const slide = el("input", { type: "range", min: "-1", max: String(p.microbatches - 1), value: String(followed),
		"aria-label": "Microbatch to follow", input: () => follow(Number(slide.value)) });
	function follow(m) {
		followed = Math.max(-1, Math.min(p.microbatches - 1, m));
		number.value = slide.value = String(followed);
		view.redraw();
	}
	const said = el("p", { class: "dim" });
	function set(timed) {
		run = simulate(p, timed);
		const idle = run.stages.map((line) => line.wait.reduce((a, w) => a + w, 0));
		const sent = run.stages.reduce((a, line) => a + line.sent.reduce((x, w) => x + w, 0), 0);
		const rows = run.rows.reduce((a, r, s) => a + r * run.stages[s].n, 0);
		said.textContent = p.stages.length === 1
			? `One stage: microbatches pass one after the other, without a bubble.${run.complete ? "" : ` The first ${
				commas(run.stages[0].n / p.costs.length)} of ${commas(p.microbatches)} microbatches.`}`
			: `Bubble: ${percent(run.bubble)} of the ${timed ? "passes' expected time" : "units"}${timed ? `; by equal chunks, as PLAN.txt has it, ${
				percent(p.bubble)}` : ""}. Ranks wait ${time(idle.reduce((a, x) => a + x, 0) / idle.length)} on average before their last pass${
				timed ? `, of that ${time(sent / idle.length)} for the link; rows to experts take ${time(rows / idle.length)} inside passes` : ""}.${
				run.complete ? "" : " The time line shows the first part of a longer step."}`;
		if (view)
			view.redraw();
	}
	set(known);
	view = figure({
		label: `Time line of ${p.stages.length} pipeline stages and ${p.microbatches} microbatches`, moves: "x", left,
		height: axis + p.stages.length * row + 4, draw, hit,
		picked: (i) => i && i.microbatch !== undefined && follow(i.microbatch === followed ? -1 : i.microbatch),
		key(event) {
			if (event.key !== "[" && event.key !== "]")
				return false;
			follow(followed + (event.key === "]" ? 1 : -1));
			view.say(followed < 0 ? "No microbatch is followed" : `Following microbatch ${followed}`);
			return true;
		},
	});
	box.append(
		el("div", { class: "bar" }, known ? buttons("Length of passes", [[true, "expected time"], [false, "equal chunks"]], true, set) : "",
			el("label", null, "follow microbatch", number), slide),
		said,
		el("figure", null, view.controls, view.canvas, view.status,
			legend([...p.costs.map((_, ph) => [`var(--${fill[p.phases[ph]]})`, p.phases[ph]]), ["var(--soft)", "bubble: waiting"],
				...(known ? [["var(--c5)", "exposed communication"], ["var(--c3)", "update"]] : [])]),
			el("figcaption", null, "A row is a pipeline stage, and all its ranks do the same. Numbers are microbatches; a click ",
				"on one, or the keys [ and ], follow it through every stage. Gaps say what they wait for.")),
		table_view("passes", [["stage", "n"], ["number", "n"], ["pass", ""], ["microbatch", "n"], ["chunk", "n"], ["start", "n"],
			["takes", "n"], ["waited before", "n"]], () => run.stages.flatMap((line, s) =>
			Array.from({ length: line.n }, (_, i) => {
				const [ph, k, m] = pass_of(line.list[i], chunks);
				return [s, i, p.phases[ph], m, k, time(line.start[i]), time(run.length(s, i)), time(line.wait[i])];
			}))));
	box.plan_view = { ...box.plan_view, pipeline: { view, run: () => run, follow, followed: () => followed,
		place: (s, i) => [x_of(run.stages[s].start[i] + run.length(s, i) / 2, view), axis + s * row + row / 2] } };
}
