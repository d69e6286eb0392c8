"""A small hand-written corpus in the manner of E2E, with everything that scorers trip over.

It has uppercase, accents, a pound sign, digits with dots and dashes, brackets, quotes, entities,
repeated words, a lone mark, empty predictions (one of them last), one to four references, and the
word "0", after which the official NIST has a quirk.
"""

# A prediction behind ">", and its references behind "-".
CORPUS = """
> The Copper Kettle is a cheap tea room by the canal.
- The Copper Kettle is a cheap tea room by the canal.
- By the canal there is a tea room, The Copper Kettle, with low prices.
> Harbour Lights serves fish near the old bridge
- Harbour Lights is a fish restaurant near the old bridge.
- Near the old bridge you can eat fish at Harbour Lights.
- A place for fish: Harbour Lights, near the old bridge.
> CAFÉ ÉTOILE HAS A RATING OF 4.5 OUT OF 5!
- Café Étoile is rated 4.5 out of 5.
- With a rating of 4.5 out of 5, Café Étoile is well liked.
>
- The Green Door is not for families.
- Don't take your children to The Green Door.
> Mains cost £20-25 at at at the the Silver Spoon Spoon .
- At the Silver Spoon mains cost £20-25.
- The Silver Spoon has mains for £20-25 (drinks not included).
- Mains at the Silver Spoon: £20-25.
- You'll pay £20-25 for a main at the Silver Spoon; it isn't cheap.
> Fish & chips, "the best in town", at Nell's [riverside].
- Nell's has "the best fish & chips in town" and is on the riverside.
- Riverside chip shop Nell's sells fish &amp; chips.
> A friendly pub .
- The Lamb is a friendly, family-run pub with 1,200 reviews.
> 0 of 5 guests liked Bitter End , 0 guests came back
- 0 of 5 guests liked the Bitter End. 0 guests came back.
- The Bitter End got 0 stars from 5 guests.
> ?
- Is Luigi's open on Sundays? Yes.
- Luigi's opens on Sundays.
> bridge near noodles cheap the sells Wok Inn
- Wok Inn sells cheap noodles near the bridge.
- Cheap noodles are sold at Wok Inn near the bridge.
> The Old Mill is a coffee shop. The Old Mill is a coffee shop. The Old Mill is a coffee shop.
- The Old Mill is a coffee shop in the U.S. style.
- There is a coffee shop called The Old Mill -- it is pricey…
> Rosa's kitchen serves Italian meals for an average price
- Rosa's Kitchen serves Italian food at average prices.
- For averagely priced Italian dishes, try Rosa's Kitchen.
>
- Blue Gate is a wine bar.
- A wine bar called Blue Gate.
"""

PREDICTIONS, REFERENCES = list[str](), list[list[str]]()
for line in CORPUS.strip().splitlines():
    if line.startswith(">"):
        PREDICTIONS.append(line[1:].strip())
        REFERENCES.append([])
    else:
        REFERENCES[-1].append(line[2:])
